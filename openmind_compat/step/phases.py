"""The phases of a training step, each compiled on its own.

HF's loop asks for them one by one: gradients for each micro-batch, their norm, the update. All of them belong to one
:class:`~openmind_compat.wrapper.MFTrainOneStepCell`; its ``construct`` is the three in one graph. Gradients are
separate arguments, never one tuple: GRAPH mode would take a tuple's tensors for constants and compile at every call.
"""

from __future__ import annotations

from typing import Any

from openmind_compat.runtime import load_mindspore

_mindspore = load_mindspore()
_nn = _mindspore.nn


class CapturedNetwork(_nn.Cell):
    """A translated training graph as the network of a step: it carries its own backward."""

    def __init__(self, graph: Any) -> None:
        super().__init__(auto_prefix=False)
        self.graph = graph

    def construct(self, *inputs):
        one = _mindspore.Tensor(1.0, _mindspore.float32)
        return self.graph(*inputs, one)[0]

    def loss_and_gradients(self, *inputs_and_sens):
        """Inputs, then the gradient of the loss; returns the loss and the gradients."""
        results = self.graph(*inputs_and_sens)
        return results[0], results[1:]


class GradientPhase(_nn.Cell):
    """Loss and gradients of one micro-batch, multiplied by the last input, 0-d float32."""

    def __init__(self, network: Any) -> None:
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, *inputs_and_share):
        return self.network.loss_and_gradients(*inputs_and_share)


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
