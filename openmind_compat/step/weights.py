"""One set of weights, seen from two sides: the torch module that the script holds, and MindSpore's Parameters.

On the CPU both sides read and write the same memory, so there is nothing to copy and nothing that can be out of date.
On a device the Parameters live there; the torch side is brought up to date when somebody looks (:meth:`Weights.lend`),
and what was changed there is taken over before the next computation (:meth:`Weights.reclaim`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from openmind_compat.runtime import load_mindspore
from openmind_compat.translate.cell import to_mindspore


class Weights:
    """MindSpore Parameters for the parameters and buffers of a torch module.

    Attributes:
        parameters: MindSpore Parameter by the name it has in the module; a tied weight has one, under its first name.
        shared: Whether both sides use the same memory.
        replaced: How often tensors of the module were found replaced or written to.
    """

    def __init__(self, module: torch.nn.Module, shared: bool) -> None:
        mindspore = load_mindspore()
        self.module = module
        self.shared = shared
        self.parameters = {}
        self.replaced = 0
        self._seen: dict[str, int] = {}
        self._seen_in_order: list[int] = []
        self._ahead = False  # the device has newer weights than the torch side
        self._lent = False  # somebody who may have changed the torch side has had it
        for name, tensor in self._tensors():
            if tensor.is_meta:
                raise ValueError(f"parameter {name} is on the meta device: load the weights before training")
            self.parameters[name] = mindspore.Parameter(
                to_mindspore(tensor), name=name, requires_grad=tensor.requires_grad
            )
        if shared:
            self._share()
        self._note_torch_side()

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.module.named_parameters()
        yield from self.module.named_buffers()

    def persistent_buffers(self) -> set[str]:
        """Names of the buffers that are part of the module's state."""
        names = set()
        for prefix, submodule in self.module.named_modules():
            for name in submodule._buffers:
                if name not in submodule._non_persistent_buffers_set:
                    names.add(f"{prefix}.{name}" if prefix else name)
        return names

    def _share(self) -> None:
        for name, tensor in self._tensors():
            tensor.data = as_torch(self.parameters[name])

    def _note_torch_side(self) -> None:
        # The address tells a replaced tensor, the version one that was written to.
        self._seen = {name: self._fingerprint(tensor) for name, tensor in self._tensors()}
        self._seen_in_order = [self._fingerprint(tensor) for tensor in self._slots()]

    def _slots(self) -> list[torch.Tensor]:
        """What is in the module now, a tied weight more than once. Quick, for it is asked at every step."""
        return [
            tensor
            for submodule in self.module.modules()
            for slots in (submodule._parameters, submodule._buffers)
            for tensor in slots.values()
            if tensor is not None
        ]

    def _fingerprint(self, tensor: torch.Tensor) -> int:
        return tensor.data_ptr() if self.shared else hash((tensor.data_ptr(), tensor._version))

    def updated_on_device(self, result: Any) -> None:
        """Say that the Parameters have changed, by the graph that yields ``result``."""
        if self.shared:
            result.asnumpy()  # waits for that graph: whoever reads next, from torch, does not
        else:
            self._ahead = True

    def lend(self) -> None:
        """Somebody is about to look at the torch module, and may change it."""
        self.pull()
        self._lent = True

    def reclaim(self) -> None:
        """The device is about to compute: take over what was changed since it was lent."""
        if self._lent:
            self.push()
            self._lent = False

    def pull(self) -> None:
        """Bring the torch side up to date."""
        if not self._ahead:
            return
        with torch.no_grad():
            for name, tensor in self._tensors():
                tensor.copy_(as_torch(self.parameters[name]))
        self._ahead = False
        self._note_torch_side()

    def push(self) -> tuple[bool, ...]:
        """Bring the device up to date with tensors that the script replaced or wrote to.

        Returns:
            Which of the module's tensors, in its own order, require a gradient.

        Raises:
            RuntimeError: A tensor has another shape than before, or is new.
        """
        now = self._slots()
        if [self._fingerprint(tensor) for tensor in now] != self._seen_in_order:
            self._take_over()
        return tuple(tensor.requires_grad for tensor in now)

    def _take_over(self) -> None:
        self.replaced += 1
        for name, tensor in self._tensors():
            if self._seen.get(name) == self._fingerprint(tensor):
                continue
            parameter = self.parameters.get(name)
            if parameter is None or tuple(parameter.shape) != tuple(tensor.shape):
                was = "is new" if parameter is None else f"had shape {tuple(parameter.shape)} before"
                raise RuntimeError(
                    f"the model was changed after training began: {name}, of shape {tuple(tensor.shape)}, {was}. "
                    "Make a new Trainer for the changed model"
                )
            write(parameter, tensor.detach())
            if self.shared:
                tensor.data = as_torch(parameter)
        self._note_torch_side()


def as_torch(parameter: object) -> torch.Tensor:
    """A torch tensor of a Parameter's elements. On the CPU it is the same memory, kept alive by the tensor."""
    array = parameter.asnumpy()
    return torch.from_numpy(array) if array.flags.writeable else torch.from_numpy(array.copy())


def write(parameter: object, tensor: torch.Tensor) -> None:
    """Put new elements into a Parameter, in place: compiled graphs hold on to its storage."""
    load_mindspore().ops.assign(parameter, to_mindspore(tensor))
