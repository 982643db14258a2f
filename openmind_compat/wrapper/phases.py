"""The parts of a step as Cells of their own, for a training loop that calls them one after the other.

Each takes its gradients as separate arguments, not as one tuple: GRAPH mode compiles a tuple's Tensors in as constants
and would compile again at every call. They share the step's parameters and keep their names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindspore import nn

if TYPE_CHECKING:
    from openmind_compat.wrapper.train_one_step import MFTrainOneStepCell


class _Phase(nn.Cell):
    def __init__(self, step: MFTrainOneStepCell) -> None:
        super().__init__(auto_prefix=False)
        self.step = step


class ForwardBackwardPhase(_Phase):
    """`*inputs` to (loss, gradients): gradients unscaled, float32, reduced over the devices."""

    def construct(self, *inputs):
        return self.step.loss_and_gradients(*inputs)


class OverflowPhase(_Phase):
    """`*gradients` to (overflow, loss scale); a loss scale Cell updates the scale."""

    def construct(self, *gradients):
        overflow = self.step.check_overflow(gradients)
        return overflow, self.step.current_loss_scale()


class ClipPhase(_Phase):
    """`*gradients` to (clipped gradients, their norm before clipping, of shape (1,))."""

    def construct(self, *gradients):
        norm = self.step.global_norm(gradients)
        return self.step.clip_gradients(gradients, norm), norm


class UpdatePhase(_Phase):
    """`*gradients` to the learning rate that the update used."""

    def construct(self, *gradients):
        learning_rate = self.step.current_learning_rate()
        self.step.update(gradients)
        return learning_rate
