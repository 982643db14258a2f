"""Layer and batch normalization."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from openmind_compat.translate.builder import Builder
from openmind_compat.translate.registry import operator
from openmind_compat.translate.values import Value

aten = torch.ops.aten


@operator(aten.native_layer_norm.default)
def layer_norm(
    b: Builder, x: Value, normalized: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    axis = x.ndim - len(normalized)
    if b.device == "CPU":
        return _layer_norm_written_out(b, x, tuple(range(axis, x.ndim)), weight, bias, eps)
    shape = tuple(normalized)
    weight = weight if weight is not None else b.number(1, shape, x.dtype)
    bias = bias if bias is not None else b.number(0, shape, x.dtype)
    statistics = x.shape[:axis] + (1,) * len(shape)
    y, mean, variance = b.call_many(
        "LayerNorm",
        x,
        weight,
        bias,
        outputs=[(x.shape, x.dtype), (statistics, torch.float32), (statistics, torch.float32)],
        begin_norm_axis=axis,
        begin_params_axis=axis,
        epsilon=eps,
    )
    rstd = b.unary("Rsqrt", b.binary("Add", variance, eps, torch.float32))
    return y, mean, rstd


def _layer_norm_written_out(
    b: Builder, x: Value, dims: tuple[int, ...], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    """No slower than the CPU's kernel, and the normalized input is there for the backward."""
    dtype = x.dtype
    mean = b.reduce("ReduceMean", x, dims, True)
    deviation = b.binary("Sub", x, mean, dtype)
    variance = b.reduce("ReduceMean", b.binary("Mul", deviation, deviation, dtype), dims, True)
    rstd = b.unary("Rsqrt", b.binary("Add", variance, eps, dtype))
    y = x_hat = b.binary("Mul", deviation, rstd, dtype)
    b.memo[("normalized", x, mean)] = x_hat
    if weight is not None:
        y = b.binary("Mul", y, weight, dtype)
    if bias is not None:
        y = b.binary("Add", y, bias, dtype)
    return y, mean, rstd


@operator(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    b: Builder,
    grad: Value,
    x: Value,
    normalized: Sequence[int],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    output_mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:
    """Written out: MindSpore's gradient kernel adds an epsilon of its own, and is slower on the CPU.

    With xh = (x - mean) rstd and gw = grad w: dx = rstd (gw - mean(gw) - xh mean(gw xh)).
    """
    dtype, axis = x.dtype, x.ndim - len(normalized)
    inner, outer = tuple(range(axis, x.ndim)), tuple(range(axis))
    x_hat = b.memo.get(("normalized", x, mean))
    if x_hat is None:
        x_hat = b.binary("Mul", b.binary("Sub", x, mean, dtype), rstd, dtype)
    dx = dw = db = None
    if output_mask[0]:
        weighted = grad if weight is None else b.binary("Mul", grad, weight, dtype)
        centre = b.reduce("ReduceMean", weighted, inner, True)
        slope = b.reduce("ReduceMean", b.binary("Mul", weighted, x_hat, dtype), inner, True)
        dx = b.binary("Sub", b.binary("Sub", weighted, centre, dtype), b.binary("Mul", x_hat, slope, dtype), dtype)
        dx = b.binary("Mul", dx, rstd, dtype)
    if output_mask[1]:
        product = b.binary("Mul", grad, x_hat, dtype)
        dw = b.reduce("ReduceSum", product, outer, False) if outer else product
    if output_mask[2]:
        db = b.reduce("ReduceSum", grad, outer, False) if outer else grad
    return dx, dw, db


def _channels(b: Builder, value: Value, ndim: int) -> Value:
    return b.reshape(value, (1, value.shape[0], *(1,) * (ndim - 2)))


@operator(aten._native_batch_norm_legit_functional.default)
def batch_norm(
    b: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, Value, Value, Value, Value]:
    """Yields the output, the batch's mean and inverse root, and the new running mean and variance."""
    dtype, ndim = x.dtype, x.ndim
    if not training:
        y, _, _ = _normalize(b, x, weight, bias, running_mean, running_var, eps)
        empty = b.number(0, (0,), dtype)
        return y, empty, empty, running_mean, running_var
    dims = (0, *range(2, ndim))
    n = x.numel // x.shape[1]
    mean = b.reduce("ReduceMean", x, dims, False)
    deviation = b.binary("Sub", x, _channels(b, mean, ndim), dtype)
    variance = b.reduce("ReduceMean", b.binary("Mul", deviation, deviation, dtype), dims, False)
    y, _, rstd = _normalize(b, x, weight, bias, mean, variance, eps)

    def blend(old: Value, new: Value) -> Value:
        kept = b.binary("Mul", old, 1 - momentum, old.dtype)
        return b.binary("Add", kept, b.binary("Mul", new, momentum, old.dtype), old.dtype)

    unbiased = b.binary("Mul", variance, n / max(n - 1, 1), dtype)
    return y, mean, rstd, blend(running_mean, mean), blend(running_var, unbiased)


@operator(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(
    b: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, Value, Value]:
    y, _, _ = _normalize(b, x, weight, bias, running_mean, running_var, eps)
    empty = b.number(0, (0,), x.dtype)
    return y, empty, empty


def _normalize(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value, eps: float
) -> tuple[Value, Value, Value]:
    dtype, ndim = x.dtype, x.ndim
    rstd = b.unary("Rsqrt", b.binary("Add", variance, eps, dtype))
    scale = rstd if weight is None else b.binary("Mul", rstd, weight, dtype)
    y = b.binary("Mul", b.binary("Sub", x, _channels(b, mean, ndim), dtype), _channels(b, scale, ndim), dtype)
    if bias is not None:
        y = b.binary("Add", y, _channels(b, bias, ndim), dtype)
    return y, mean, rstd


@operator(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    b: Builder,
    grad: Value,
    x: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_invstd: Value | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:
    dtype, ndim = x.dtype, x.ndim
    dims = (0, *range(2, ndim))
    n = x.numel // x.shape[1]
    if train:
        mean, rstd = save_mean, save_invstd
    else:
        mean, rstd = running_mean, b.unary("Rsqrt", b.binary("Add", running_var, eps, dtype))
    x_hat = b.binary("Mul", b.binary("Sub", x, _channels(b, mean, ndim), dtype), _channels(b, rstd, ndim), dtype)
    sum_grad = b.reduce("ReduceSum", grad, dims, False)
    sum_grad_x = b.reduce("ReduceSum", b.binary("Mul", grad, x_hat, dtype), dims, False)
    scale = rstd if weight is None else b.binary("Mul", rstd, weight, dtype)
    dx = grad
    if train:
        part = b.binary("Mul", x_hat, _channels(b, sum_grad_x, ndim), dtype)
        part = b.binary("Mul", b.binary("Add", part, _channels(b, sum_grad, ndim), dtype), 1 / n, dtype)
        dx = b.binary("Sub", grad, part, dtype)
    dx = b.binary("Mul", dx, _channels(b, scale, ndim), dtype)
    return tuple(value if wanted else None for value, wanted in zip((dx, sum_grad_x, sum_grad), output_mask))


@operator(aten.native_group_norm.default)
def group_norm(
    b: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    batch: int,
    channels: int,
    size: int,
    groups: int,
    eps: float,
) -> tuple[Value, Value, Value]:
    """Yields the output, and mean and inverse root of each group. Torch knows how to decompose the backward."""
    dtype, per_group = x.dtype, (batch, groups, channels // groups * size)
    rows = b.reshape(x, per_group)
    mean = b.reduce("ReduceMean", rows, (2,), True)
    deviation = b.binary("Sub", rows, mean, dtype)
    variance = b.reduce("ReduceMean", b.binary("Mul", deviation, deviation, dtype), (2,), True)
    rstd = b.unary("Rsqrt", b.binary("Add", variance, eps, dtype))
    y = b.reshape(b.binary("Mul", deviation, rstd, dtype), (batch, channels, size))
    if weight is not None:
        y = b.binary("Mul", y, _channels(b, weight, 3), dtype)
    if bias is not None:
        y = b.binary("Add", y, _channels(b, bias, 3), dtype)
    return b.reshape(y, x.shape), b.reshape(mean, (batch, groups)), b.reshape(rstd, (batch, groups))
