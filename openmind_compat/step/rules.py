"""The optimizer table: what an update does, one entry for each torch optimizer.

An entry says which options it can honour, which state it keeps (by torch's names), which numbers it needs for a step
(worked out on the host in double precision, as torch does) and how the device applies them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

Group = Mapping[str, Any]


class Rule:
    """Base of the entries. ``scalars`` names the numbers of a step in the order in which ``kernel`` takes them."""

    scalars: tuple[str, ...] = ()
    counts_steps = True
    refused: dict[str, Any] = {"amsgrad": False, "differentiable": False}

    def __init__(self, name: str) -> None:
        self.name = name

    def check(self, group: Group) -> None:
        """Raise ValueError for an option that would be ignored."""
        for option, only in self.refused.items():
            if group.get(option, only) != only:
                raise ValueError(
                    f"{self.name}({option}={group[option]!r}): the MindSpore engine has no such update; "
                    f"use {option}={only!r}, or train with framework='pt'"
                )

    def slots(self, group: Group) -> tuple[str, ...]:
        """Names of the state tensors, each of the parameter's shape, float32."""
        raise NotImplementedError

    def numbers(self, group: Group, step: int) -> list[float]:
        """The values of ``scalars`` for the step-th update (from 1)."""
        raise NotImplementedError

    def variant(self, group: Group) -> Any:
        """Options that change the computation itself and so need a graph of their own."""
        return None

    def kernel(self, variant: Any) -> Any:
        """A function (parameter, slots, gradient, scalars) that writes the update; MindSpore parses its source."""
        raise NotImplementedError


def _sign(group: Group) -> float:
    return -1.0 if group.get("maximize") else 1.0


class AdamRule(Rule):
    """Adam and AdamW, with torch's bias correction.

    MindSpore's AdamWeightDecay kernel has none: it moves a weight by lr (m / (sqrt(v) + eps) + decay w). With the
    corrections c1 = 1 - beta1^t, c2 = 1 - beta2^t handed over inside its numbers, lr sqrt(c2) / c1, eps sqrt(c2) and
    decay c1 / sqrt(c2), it moves it by torch's lr (m/c1) / (sqrt(v/c2) + eps) + lr decay w.
    """

    scalars = ("learning_rate", "epsilon", "weight_decay", "beta1", "beta2", "sign")

    def __init__(self, name: str, decoupled: bool) -> None:
        super().__init__(name)
        self.decoupled = decoupled

    def slots(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def _is_decoupled(self, group: Group) -> bool:
        return self.decoupled or bool(group.get("decoupled_weight_decay", False))

    def numbers(self, group: Group, step: int) -> list[float]:
        beta1, beta2 = (float(beta) for beta in group["betas"])
        c1, c2 = 1 - beta1**step, 1 - beta2**step
        decay = float(group["weight_decay"])
        if self._is_decoupled(group):
            decay *= c1 / math.sqrt(c2)
        rate = float(group["lr"]) * math.sqrt(c2) / c1
        return [rate, float(group["eps"]) * math.sqrt(c2), decay, beta1, beta2, _sign(group)]

    def variant(self, group: Group) -> Any:
        return self._is_decoupled(group) or not group["weight_decay"]

    def kernel(self, variant: Any) -> Any:
        from openmind_compat.step import kernels

        return kernels.adam if variant else kernels.adam_l2


class SGDRule(Rule):
    """Stochastic gradient descent with momentum, dampening and Nesterov's variant."""

    scalars = ("learning_rate", "weight_decay", "momentum", "gradient_share", "sign")
    counts_steps = False

    def slots(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def numbers(self, group: Group, step: int) -> list[float]:
        # The first gradient enters the buffer whole, whatever the dampening.
        share = 1.0 if step == 1 else 1.0 - float(group["dampening"])
        return [float(group["lr"]), float(group["weight_decay"]), float(group["momentum"]), share, _sign(group)]

    def variant(self, group: Group) -> Any:
        return "plain" if not group["momentum"] else "nesterov" if group["nesterov"] else "momentum"

    def kernel(self, variant: Any) -> Any:
        from openmind_compat.step import kernels

        return {"plain": kernels.sgd, "momentum": kernels.sgd_momentum, "nesterov": kernels.sgd_nesterov}[variant]


RULES: dict[type, Rule] = {
    torch.optim.AdamW: AdamRule("AdamW", decoupled=True),
    torch.optim.Adam: AdamRule("Adam", decoupled=False),
    torch.optim.SGD: SGDRule("SGD"),
}


def rule_for(optimizer: torch.optim.Optimizer) -> Rule:
    """The entry for a torch optimizer. Raises ValueError for a class that has none."""
    try:
        return RULES[type(optimizer)]
    except KeyError:
        raise ValueError(
            f"optimizer {type(optimizer).__module__}.{type(optimizer).__qualname__} has no update on the MindSpore "
            f"engine; use one of {', '.join(sorted(t.__name__ for t in RULES))}, add an entry to "
            "openmind_compat/step/rules.py, or train with framework='pt'"
        ) from None
