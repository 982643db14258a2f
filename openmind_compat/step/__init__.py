"""What runs on the device in a training step: weights, gradients, the update."""

from openmind_compat.step.engine import Engine
from openmind_compat.step.optimizer import MindSporeOptimizer

__all__ = ["Engine", "MindSporeOptimizer"]
