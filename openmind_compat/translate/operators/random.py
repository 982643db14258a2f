"""Dropout. Masks come from MindSpore's own generator, seeded where the Cell is built."""

from __future__ import annotations

import torch

from openmind_compat.translate.builder import Builder
from openmind_compat.translate.registry import operator
from openmind_compat.translate.values import Value

aten = torch.ops.aten


@operator(aten.native_dropout.default)
def dropout(b: Builder, x: Value, p: float, train: bool | None) -> tuple[Value, Value]:
    """Yields the output, scaled by 1 / (1 - p), and the mask of what was kept."""
    if train is False or p == 0:
        return x, b.number(True, x.shape, torch.bool)
    if p == 1:
        return b.number(0, x.shape, x.dtype), b.number(False, x.shape, torch.bool)
    mask = _keep_mask(b, x, p)
    return b.binary("Mul", x, b.binary("Mul", mask, 1 / (1 - p), x.dtype), x.dtype), mask


def _keep_mask(b: Builder, x: Value, p: float) -> Value:
    """1 with probability 1 - p, else 0, in the dtype of ``x``. Each call has a stream of its own."""
    b.seeds += 1
    ones = b.plain(b.number(1, x.shape, x.dtype))
    _, mask = b.call_many(
        "Dropout",
        ones,
        outputs=[(x.shape, x.dtype), (x.shape, x.dtype)],
        keep_prob=1 - p,
        Seed0=b.seed,
        Seed1=b.seeds,
    )
    return mask


@operator(aten.native_dropout_backward.default)
def dropout_backward(b: Builder, grad: Value, mask: Value, scale: float) -> Value:
    kept = b.binary("Mul", grad, scale, grad.dtype)
    return b.binary("Mul", kept, mask, grad.dtype)


@operator(aten.bernoulli.p)
def bernoulli(b: Builder, x: Value, p: float) -> Value:
    return _keep_mask(b, x, 1 - p)
