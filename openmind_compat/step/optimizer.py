"""The optimizer that HF's loop sees, and the one that runs on the device.

:class:`MindSporeOptimizer` is a ``torch.optim.Optimizer``: it holds the parameter groups that a scheduler drives, and
its ``state_dict`` is that of the torch optimizer it stands for, so checkpoints move between engines. The arithmetic is
in :mod:`openmind_compat.step.rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from openmind_compat.step.rules import Rule, rule_for
from openmind_compat.step.weights import as_torch, write

if TYPE_CHECKING:
    from openmind_compat.step.engine import Engine


class MindSporeOptimizer(torch.optim.Optimizer):
    """Stands in for a torch optimizer whose update runs on MindSpore.

    Args:
        original: The torch optimizer. Its groups are shared: a scheduler built on it drives this one as well, and a
            group that is added to it later is updated too.
        engine: Holds the gradients and runs the update.

    Raises:
        ValueError: The optimizer's class, an option of a group, or a parameter is not one that the engine can update.
    """

    def __init__(self, original: torch.optim.Optimizer, engine: Engine) -> None:
        super().__init__(original.param_groups, original.defaults)
        self.param_groups = original.param_groups  # the list itself
        self.original = original
        self.rule: Rule = rule_for(original)
        self.engine = engine
        self._names: list[list[str]] = []
        self._named: list[list[int]] = []
        _ = self.names
        if original.state:
            self.load_state_dict(original.state_dict())

    @property
    def names(self) -> list[list[str]]:
        """For each group the names that its parameters have in the model."""
        ids = [list(map(id, group["params"])) for group in self.param_groups]
        if ids != self._named:
            self._names, self._named = [self._names_of(group) for group in self.param_groups], ids
        return self._names

    def _names_of(self, group: Mapping[str, Any]) -> list[str]:
        self.rule.check(group)
        names = {id(parameter): name for name, parameter in self.engine.module.named_parameters()}
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise ValueError(
                    f"{type(self.original).__name__} holds a parameter of shape {tuple(parameter.shape)} that is not "
                    "part of the model given to the Trainer: build the optimizer from that model's parameters"
                )
        return [names[id(parameter)] for parameter in group["params"]]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Update the weights on the device with the gradients of the last accumulation group."""
        if closure is not None:
            raise ValueError("the MindSpore engine computes gradients before the step: call step() without a closure")
        self.engine.update(self)
        self.original._opt_called = True  # a scheduler built on the original asks whether it has stepped

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop gradients that have not been used."""
        self.engine.drop_gradients()

    def state_dict(self) -> dict[str, Any]:
        """The state in the format of the torch optimizer that this one stands for."""
        for names, group in zip(self.names, self.param_groups):
            for name, parameter in zip(names, group["params"]):
                state = self.engine.optimizer_state.export(name, self.rule)
                if state:
                    self.state[parameter] = state
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state that a torch optimizer, or this one, has written. Shapes are checked first."""
        super().load_state_dict(state_dict)
        self.original.param_groups = self.param_groups  # torch makes new ones, and a scheduler keeps to the original
        self.engine.optimizer_state.clear()
        for names, group in zip(self.names, self.param_groups):
            self.rule.check(group)
            for name, parameter in zip(names, group["params"]):
                if parameter in self.state:
                    self.engine.optimizer_state.load(name, self.state[parameter], self.rule, parameter)


class OptimizerState:
    """Moments on the device and step counts on the host, by parameter name."""

    def __init__(self) -> None:
        self.slots: dict[str, dict[str, Any]] = {}
        self.steps: dict[str, int] = {}

    def clear(self) -> None:
        self.steps.clear()
        self._fill_zero()

    def _fill_zero(self) -> None:
        # In place, for compiled updates hold on to the storage.
        for slots in self.slots.values():
            for parameter in slots.values():
                write(parameter, torch.zeros(tuple(parameter.shape)))

    def ensure(self, name: str, like: Any, rule: Rule, group: Mapping[str, Any]) -> list[Any]:
        """The slots of a parameter, made of zeros where it has none yet."""
        import numpy as np

        from openmind_compat.runtime import load_mindspore

        mindspore = load_mindspore()
        slots = self.slots.setdefault(name, {})
        for slot in rule.slots(group):
            if slot not in slots:
                zeros = mindspore.Tensor(np.zeros(like.shape, np.float32))
                slots[slot] = mindspore.Parameter(zeros, name=f"{slot}.{name}", requires_grad=False)
        return [slots[slot] for slot in rule.slots(group)]

    def export(self, name: str, rule: Rule) -> dict[str, Any]:
        steps = self.steps.get(name, 0)
        if not steps:
            return {}
        state: dict[str, Any] = {"step": torch.tensor(float(steps))} if rule.counts_steps else {}
        state.update({slot: as_torch(parameter) for slot, parameter in self.slots.get(name, {}).items()})
        return state

    def load(self, name: str, state: Mapping[str, Any], rule: Rule, like: torch.Tensor) -> None:
        # Without a count (SGD) what matters is only that there has been a step.
        self.steps[name] = int(state["step"]) if "step" in state else 1
        group = {"momentum": 1.0}  # makes room for every slot that the rule knows
        for slot in rule.slots(group):
            value = state.get(slot)
            if value is None:
                continue
            if value.shape != like.shape:
                raise ValueError(
                    f"optimizer state {slot!r} of {name} has shape {tuple(value.shape)}, the parameter "
                    f"{tuple(like.shape)}: the checkpoint belongs to another model"
                )
            self.ensure(name, like, rule, group)
            write(self.slots[name][slot], value.float())
