"""The phases of a training step, each compiled on its own.

HF's loop asks for them one by one: gradients for each micro-batch, their norm, the update. All of them belong to one
:class:`~openmind_compat.wrapper.MFTrainOneStepCell`; its ``construct`` is the three in one graph. Gradients are
separate arguments, never one tuple: GRAPH mode would take a tuple's tensors for constants and compile at every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openmind_compat.runtime import load_mindspore
from openmind_compat.wrapper import MFTrainOneStepCell

_mindspore = load_mindspore()
_nn = _mindspore.nn


class CapturedNetwork(_nn.Cell):
    """A translated training graph as the network of a step: it carries its own backward.

    Inputs are those of the graph: the batch's tensors, then the 0-d float32 number that multiplies the gradients.
    """

    def __init__(self, graph: Any) -> None:
        super().__init__(auto_prefix=False)
        self.graph = graph

    def construct(self, *inputs_and_sens):
        return self.graph(*inputs_and_sens)[0]

    def loss_and_gradients(self, *inputs_and_sens):
        results = self.graph(*inputs_and_sens)
        return results[0], results[1:]


class LoopStep(MFTrainOneStepCell):
    """The training step as HF's loop takes it apart.

    The last input is what a micro-batch counts for in its group; it takes the place of the loss scale, and as the
    gradients shall be multiplied by it, there is nothing to undo afterwards.
    """

    def local_loss_and_gradients(self, *inputs_and_share):
        return self.network.loss_and_gradients(*inputs_and_share)


class Targets(_nn.Cell):
    """Stands for the optimizer where a phase needs to know only which parameters it has."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        super().__init__(auto_prefix=False)
        self.parameters = _mindspore.ParameterTuple(parameters)
        self.learning_rate = _mindspore.Tensor(0.0, _mindspore.float32)

    def construct(self, gradients):
        return gradients


class SumPhase(_nn.Cell):
    """Adds the gradients of two micro-batches: all of the first, then all of the second."""

    def construct(self, *gradients):
        half = len(gradients) // 2
        total = ()
        for i in range(half):
            total = total + (gradients[i] + gradients[half + i],)
        return total


class NormPhase(_nn.Cell):
    """`*gradients` to the norm of all of them together, shape (1,)."""

    def __init__(self, step: Any) -> None:
        super().__init__(auto_prefix=False)
        self.step = step

    def construct(self, *gradients):
        return self.step.global_norm(gradients)
