"""The optimizer as a Cell: all parameters' updates in one graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openmind_compat.runtime import load_mindspore

_mindspore = load_mindspore()
_nn = _mindspore.nn


@dataclass(frozen=True)
class Bucket:
    """Parameters that are updated with the same numbers: one parameter group, at one step count."""

    parameters: tuple[Any, ...]
    slots: tuple[tuple[Any, ...], ...]
    kernel: Any
    scalars: tuple[str, ...]


class HostNumber:
    """A 0-d float32 Parameter that the host sets before each step, in place, for graphs hold on to its storage."""

    def __init__(self, name: str, value: float, shared: bool) -> None:
        self.parameter = _mindspore.Parameter(_mindspore.Tensor(value, _mindspore.float32), name, requires_grad=False)
        self._view = self.parameter.asnumpy() if shared else None

    def set(self, value: float) -> None:
        if self._view is not None:
            self._view[...] = np.float32(value)
        else:
            _mindspore.ops.assign(self.parameter, _mindspore.Tensor(value, _mindspore.float32))


class DeviceUpdate(_nn.Cell):
    """Updates every parameter of the buckets from its gradient.

    Args:
        buckets: What to update, and how.
        shared: Whether host and device use the same memory.

    Inputs:
        gradients: Tuple of tensors, in the order of the buckets' parameters, each of its parameter's shape.
    """

    def __init__(self, buckets: Sequence[Bucket], shared: bool) -> None:
        super().__init__(auto_prefix=False)
        parameters = [p for bucket in buckets for p in bucket.parameters]
        self.parameters = _mindspore.ParameterTuple(parameters)
        self.clip = HostNumber("clip_coefficient", 1.0, shared)
        self.numbers = [
            [HostNumber(f"{name}.{i}", 0.0, shared) for name in bucket.scalars] for i, bucket in enumerate(buckets)
        ]
        # Every parameter its own small Cell: GRAPH mode needs no look-up by bucket.
        updates = []
        for bucket, numbers in zip(buckets, self.numbers):
            for parameter, slots in zip(bucket.parameters, bucket.slots):
                updates.append(_OneUpdate(bucket.kernel, parameter, slots, self.clip.parameter, numbers))
        # auto_prefix would name every parameter by its place here, and the next update's places clash with those.
        self.updates = _nn.CellList(updates, auto_prefix=False)
        self.learning_rate = self.numbers[0][0].parameter
        self.enable_tuple_broaden = True  # or GRAPH mode takes the gradients for constants

    def set_numbers(self, clip: float, numbers: Sequence[Sequence[float]]) -> None:
        """Set the clipping coefficient and each bucket's scalars for the next update."""
        self.clip.set(clip)
        for targets, values in zip(self.numbers, numbers):
            for target, value in zip(targets, values):
                target.set(value)

    def construct(self, gradients):
        done = ()
        for i in range(len(self.updates)):
            done = done + (self.updates[i](gradients[i]),)
        return done


class _OneUpdate(_nn.Cell):
    """One parameter's update."""

    def __init__(self, kernel: Any, parameter: Any, slots: Sequence[Any], clip: Any, numbers: Sequence[Any]) -> None:
        super().__init__(auto_prefix=False)
        self.kernel = kernel
        self.parameter = parameter
        self.clip = clip
        self.slots = _mindspore.ParameterTuple(slots)
        self.numbers = _mindspore.ParameterTuple([number.parameter for number in numbers])

    def construct(self, gradient):
        return self.kernel(self.parameter, self.slots, gradient, self.clip, self.numbers)
