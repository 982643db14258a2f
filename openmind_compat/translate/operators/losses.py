"""Negative log likelihood, forward and backward."""

from __future__ import annotations

import torch

from openmind_compat.translate.builder import Builder
from openmind_compat.translate.operators.elementwise import choose
from openmind_compat.translate.registry import operator
from openmind_compat.translate.values import Value

aten = torch.ops.aten

NONE, MEAN, SUM = 0, 1, 2


def _row_weights(
    b: Builder, target: Value, weight: Value | None, ignore_index: int, dtype: torch.dtype
) -> tuple[Value, Value]:
    """Class index safe to look up, and each row's weight: 0 where the target is ignored."""
    kept = b.binary("NotEqual", target, ignore_index, target.dtype, torch.bool)
    index = choose(b, kept, target, b.number(0, (1,) * target.ndim, target.dtype), target.dtype, target.shape)
    rows = b.cast(kept, dtype)
    if weight is not None:
        picked = b.call("Gather", weight, index, 0, shape=index.shape, dtype=dtype)
        rows = b.binary("Mul", rows, picked, dtype)
    return index, rows


@operator(aten.nll_loss_forward.default)
def nll_loss(
    b: Builder, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    """``x``: log probabilities, shape (N, C) or (C,)."""
    if x.ndim == 1:
        x, target = b.reshape(x, (1, *x.shape)), b.reshape(target, (1,))
    dtype, n = x.dtype, x.shape[0]
    index, rows = _row_weights(b, target, weight, ignore_index, dtype)
    picked = b.call("GatherD", x, 1, b.reshape(index, (n, 1)), shape=(n, 1), dtype=dtype)
    losses = b.unary("Neg", b.binary("Mul", b.reshape(picked, (n,)), rows, dtype))
    total_weight = b.reduce("ReduceSum", rows, (), False)
    if reduction == NONE:
        return b.reshape(losses, b.result[0].shape), b.number(0, (), dtype)
    total = b.reduce("ReduceSum", losses, (), False)
    if reduction == MEAN:
        total = b.binary("RealDiv", total, total_weight, dtype)
    return total, total_weight


@operator(aten.nll_loss_backward.default)
def nll_loss_backward(
    b: Builder,
    grad: Value,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
    total_weight: Value,
) -> Value:
    """Minus the row's weight at the target's place, zero elsewhere."""
    shape = x.shape
    if x.ndim == 1:
        x, target = b.reshape(x, (1, *x.shape)), b.reshape(target, (1,))
    dtype, (n, classes) = x.dtype, x.shape
    index, rows = _row_weights(b, target, weight, ignore_index, dtype)
    scale = grad if reduction != MEAN else b.binary("RealDiv", grad, total_weight, dtype)
    rows = b.reshape(b.unary("Neg", b.binary("Mul", rows, scale, dtype)), (n, 1))
    one, zero = b.constant_scalar(1, dtype), b.constant_scalar(0, dtype)
    hot = b.call("OneHot", index, classes, one, zero, shape=(n, classes), dtype=dtype)
    result = b.reshape(b.binary("Mul", hot, rows, dtype), shape)
    b.memo[("nll gradient", result)] = (index, rows)
    return result
