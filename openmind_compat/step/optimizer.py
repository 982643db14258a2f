"""The optimizer that HF's loop sees, and the one that runs on the device.

:class:`MindSporeOptimizer` is a ``torch.optim.Optimizer``: it holds the parameter groups that a scheduler drives, and
its ``state_dict`` is that of the torch optimizer it stands for, so checkpoints move between engines. The arithmetic is
in :mod:`openmind_compat.step.rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
        self._names: list[list[str | None]] = []
        self._names_are_of: Any = None
        for group, names in zip(self.param_groups, self.names):
            for parameter, name in zip(group["params"], names):
                if name is None:
                    raise ValueError(
                        f"{type(original).__name__} holds a parameter of shape {tuple(parameter.shape)} that is not "
                        "part of the model given to the Trainer: build the optimizer from that model's parameters"
                    )
        if original.state:
            self.load_state_dict(original.state_dict())

    @property
    def names(self) -> list[list[str | None]]:
        """For each group the names of its parameters in the model; None for one that the script has since taken out."""
        held = [list(map(id, group["params"])) for group in self.param_groups]
        if (held, self.engine.weights.replaced) != self._names_are_of:
            known = {id(parameter): name for name, parameter in self.engine.module.named_parameters()}
            self._names = [[known.get(parameter) for parameter in group] for group in held]
            self._names_are_of = held, self.engine.weights.replaced
            for group in self.param_groups:
                self.rule.check(group)
        return self._names

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
        for name, parameter in self._named_parameters():
            state = self.engine.optimizer_state.export(name, self.rule)
            if state:
                self.state[parameter] = state
        try:
            return super().state_dict()
        finally:
            self.state.clear()  # it lives in the engine; torch's own place for it would hold a copy

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state that a torch optimizer, or this one, has written. Shapes are checked first."""
        super().load_state_dict(state_dict)
        self.original.param_groups = self.param_groups  # torch makes new ones, and a scheduler keeps to the original
        for group in self.param_groups:
            self.rule.check(group)
        for name, parameter in self._named_parameters():
            self.engine.optimizer_state.load(name, self.state.get(parameter, {}), self.rule, parameter)
        self.state.clear()

    def _named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for names, group in zip(self.names, self.param_groups):
            yield from ((name, parameter) for name, parameter in zip(names, group["params"]) if name is not None)


class OptimizerState:
    """Moments on the device and step counts on the host, by parameter name."""

    def __init__(self) -> None:
        self.slots: dict[str, dict[str, Any]] = {}
        self.steps: dict[str, int] = {}

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
        """Put a parameter's state in place of what there is; an empty one for a parameter that has not stepped yet."""
        # Without a count (SGD) what matters is only that there has been a step.
        self.steps[name] = int(state["step"]) if "step" in state else int(bool(state))
        group = {"momentum": 1.0}  # makes room for every slot that the rule knows
        for slot in rule.slots(group):
            value = state.get(slot)
            if value is not None:
                if value.shape != like.shape:
                    raise ValueError(
                        f"optimizer state {slot!r} of {name} has shape {tuple(value.shape)}, the parameter "
                        f"{tuple(like.shape)}: the checkpoint belongs to another model"
                    )
                self.ensure(name, like, rule, group)
                write(self.slots[name][slot], value.float())
            elif slot in self.slots.get(name, {}):
                # In place, for compiled updates hold on to the storage.
                write(self.slots[name][slot], torch.zeros(tuple(like.shape)))
