"""Sums, means, extremes, softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from openmind_compat.translate.builder import Builder
from openmind_compat.translate.registry import operator
from openmind_compat.translate.values import Expanded, Scaled, Value, expanded, permuted, unexpanded

aten = torch.ops.aten


@operator(aten.sum.dim_IntList, aten.sum.default)
def sum_dims(
    b: Builder, x: Value, dims: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    x = b.cast(x, b.result.dtype)
    if x.ndim == 0:
        return x
    dims = tuple(d % x.ndim for d in dims) if dims else tuple(range(x.ndim))
    if isinstance(x.view, Scaled) and dims == (0,):  # the bias of a language model's head
        total = b.call(
            "MatMul", x.view.factor, x.view.base, shape=(1, x.shape[1]), transpose_a=True, transpose_b=False
        )
        return b.reshape(total, b.result.shape)
    repeats = 1
    if x.scalar is not None:
        for d in dims:
            repeats *= x.shape[d]
        return b.number(x.scalar * repeats, b.result.shape, x.dtype)
    if isinstance(x.view, Expanded):  # the sum of n equal elements is a product
        base = x.view.base
        for d in dims:
            repeats *= x.shape[d] // base.shape[d]
        short = tuple(n if d in dims else m for d, (n, m) in enumerate(zip(base.shape, x.shape)))
        x = expanded(base, short)
        if repeats != 1:
            x = b.binary("Mul", x, repeats, x.dtype)
    live = tuple(d for d in dims if x.shape[d] != 1)
    if live:
        x = b.reduce("ReduceSum", x, live, True if keepdim else len(live) != len(dims))
    return b.reshape(x, b.result.shape)


@operator(aten.mean.dim, aten.mean.default)
def mean(b: Builder, x: Value, dims: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return b.reduce("ReduceMean", b.cast(x, b.result.dtype), dims or (), keepdim)


@operator(aten.amax.default)
def amax(b: Builder, x: Value, dims: Sequence[int] = (), keepdim: bool = False) -> Value:
    return b.reduce("ReduceAny" if x.dtype == torch.bool else "ReduceMax", x, dims, keepdim)


@operator(aten.amin.default)
def amin(b: Builder, x: Value, dims: Sequence[int] = (), keepdim: bool = False) -> Value:
    return b.reduce("ReduceAll" if x.dtype == torch.bool else "ReduceMin", x, dims, keepdim)


@operator(aten.max.dim)
def max_dim(b: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return _extreme(b, "ArgMaxWithValue", x, dim)


@operator(aten.min.dim)
def min_dim(b: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return _extreme(b, "ArgMinWithValue", x, dim)


def _extreme(b: Builder, primitive: str, x: Value, dim: int) -> tuple[Value, Value]:
    """The extremes along a dimension, and where they are."""
    if x.ndim == 0:
        return x, b.number(0, (), torch.int64)
    if x.dtype == torch.bool:  # no such kernel on the CPU
        values, index = _extreme(b, primitive, b.cast(x, torch.int32), dim)
        return b.cast(values, torch.bool), index
    dim %= x.ndim
    shape = x.shape[:dim] + (1,) + x.shape[dim + 1 :]
    outputs = [(shape, torch.int32), (shape, x.dtype)]
    index, values = b.call_many(primitive, x, outputs=outputs, axis=dim, keep_dims=True)
    shape = tuple(b.result[0].shape)
    return b.reshape(values, shape), b.reshape(b.cast(index, torch.int64), shape)


@operator(aten.sort.default)
def sort(b: Builder, x: Value, dim: int = -1, descending: bool = False) -> tuple[Value, Value]:
    """Equal elements come in any order, as torch says; its stable sort has no entry."""
    if x.ndim == 0:
        return x, b.number(0, (), torch.int64)
    x, order = _to_the_end(x, dim)
    outputs = [(x.shape, x.dtype), (x.shape, torch.int32)]
    values, index = b.call_many("Sort", x, outputs=outputs, axis=-1, descending=descending)
    return permuted(values, order), permuted(b.cast(index, torch.int64), order)


@operator(aten.topk.default)
def topk(
    b: Builder, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, Value]:
    x, order = _to_the_end(x, dim)
    shape = (*x.shape[:-1], k)
    if not largest:
        x = b.unary("Neg", x)
    values, index = b.call_many("TopK", x, k, outputs=[(shape, x.dtype), (shape, torch.int32)], sorted=True)
    if not largest:
        values = b.unary("Neg", values)
    return permuted(values, order), permuted(b.cast(index, torch.int64), order)


def _to_the_end(x: Value, dim: int) -> tuple[Value, tuple[int, ...]]:
    """``x`` with ``dim`` as its last dimension, and the order of dimensions that puts it back."""
    dim %= x.ndim
    last = x.ndim - 1
    order = (*(d for d in range(x.ndim) if d != dim), dim)
    return permuted(x, order), tuple(order.index(d) for d in range(last + 1))


@operator(aten.max.default)
def max_all(b: Builder, x: Value) -> Value:
    return amax(b, x)


@operator(aten.min.default)
def min_all(b: Builder, x: Value) -> Value:
    return amin(b, x)


@operator(aten.any.default, aten.any.dim, aten.any.dims)
def any_true(b: Builder, x: Value, dims: Any = (), keepdim: bool = False) -> Value:
    return _logical_reduction(b, "ReduceAny", x, dims, keepdim)


@operator(aten.all.default, aten.all.dim, aten.all.dims)
def all_true(b: Builder, x: Value, dims: Any = (), keepdim: bool = False) -> Value:
    return _logical_reduction(b, "ReduceAll", x, dims, keepdim)


def _logical_reduction(b: Builder, primitive: str, x: Value, dims: Any, keepdim: bool) -> Value:
    flags = x if x.dtype == torch.bool else b.binary("NotEqual", x, 0, x.dtype, torch.bool)
    return b.reduce(primitive, flags, (dims,) if isinstance(dims, int) else dims or (), keepdim)


@operator(aten.cumsum.default)
def cumsum(b: Builder, x: Value, dim: int, *, dtype: Any = None) -> Value:
    x = b.cast(x, b.result.dtype)
    return b.call("CumSum", x, dim, shape=x.shape) if x.ndim else x


@operator(aten.prod.default, aten.prod.dim_int)
def prod(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return b.reduce("ReduceProd", b.cast(x, b.result.dtype), () if dim is None else (dim,), keepdim)


@operator(aten.cumprod.default)
def cumprod(b: Builder, x: Value, dim: int, *, dtype: Any = None) -> Value:
    x = b.cast(x, b.result.dtype)
    return b.call("CumProd", x, dim % x.ndim, shape=x.shape, exclusive=False, reverse=False) if x.ndim else x


@operator(aten.argmax.default)
def argmax(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _position(b, "Argmax", x, dim)


@operator(aten.argmin.default)
def argmin(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _position(b, "Argmin", x, dim)


def _position(b: Builder, primitive: str, x: Value, dim: int | None) -> Value:
    if dim is None or x.ndim == 0:
        x, dim = b.reshape(x, (x.numel,)), 0
    dim %= x.ndim
    shape = x.shape[:dim] + x.shape[dim + 1 :]
    index = b.call(primitive, x, shape=shape, dtype=torch.int32, axis=dim)
    return b.reshape(b.cast(index, torch.int64), b.result.shape)


@operator(aten.var_mean.correction)
def var_mean(
    b: Builder, x: Value, dims: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    dims = tuple(d % x.ndim for d in dims) if dims else tuple(range(x.ndim))
    average = b.reduce("ReduceMean", x, dims, True)
    deviation = b.binary("Sub", x, average, x.dtype)
    n = 1
    for d in dims:
        n *= x.shape[d]
    total = b.reduce("ReduceSum", b.binary("Mul", deviation, deviation, x.dtype), dims, True)
    n -= 1 if correction is None else correction
    variance = b.binary("Mul", total, 1 / n if n > 0 else math.inf, x.dtype)  # 0 times infinity: torch's NaN
    return b.reshape(variance, b.result[0].shape), b.reshape(average, b.result[1].shape)


@operator(aten.var.correction)
def var(
    b: Builder, x: Value, dims: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Value:
    b.result = (b.result, b.result)
    return var_mean(b, x, dims, correction=correction, keepdim=keepdim)[0]


# -- softmax -----------------------------------------------------------------------------------------------------


@operator(aten._softmax.default)
def softmax(b: Builder, x: Value, dim: int, half_to_float: bool) -> Value:
    return b.softmax("Softmax", b.cast(x, b.result.dtype), dim)


@operator(aten._safe_softmax.default)
def safe_softmax(b: Builder, x: Value, dim: int, dtype: Any = None) -> Value:
    """Softmax whose rows are zero where every element is -inf."""
    x = b.cast(x, b.result.dtype)
    mask = b.memo.get(("mask of", x), x)
    weights = b.softmax("Softmax", x, dim)
    return zero_empty_rows(b, weights, mask, dim)


def zero_empty_rows(b: Builder, weights: Value, mask: Value, dim: int) -> Value:
    """Attention weights, zero in the rows in which ``mask`` is -inf (or False) throughout.

    Such rows are looked for in the mask, which has no head dimension and is often the same for every layer, because a
    maximum over the scores costs as much as the softmax.
    """
    mask = unexpanded(mask)
    if mask.dtype != torch.bool and not mask.infinite:
        return weights
    key = ("rows to keep", mask, dim)
    if key not in b.memo:
        dtype = weights.dtype
        open_ = mask if mask.dtype == torch.bool else b.binary("Greater", mask, float("-inf"), mask.dtype, torch.bool)
        ones = b.cast(open_, dtype)
        b.memo[key] = ones if ones.shape[dim] == 1 else b.reduce("ReduceMax", ones, (dim,), True)
    return b.binary("Mul", weights, b.memo[key], weights.dtype)


@operator(aten._softmax_backward_data.default)
def softmax_backward(b: Builder, grad: Value, y: Value, dim: int, input_dtype: torch.dtype) -> Value:
    return softmax_gradient(b, grad, y, dim)


def softmax_gradient(b: Builder, grad: Value, y: Value, dim: int) -> Value:
    """y (g - sum(y g))."""
    dtype = y.dtype
    total = b.reduce("ReduceSum", b.binary("Mul", grad, y, dtype), (dim,), True)
    return b.binary("Mul", y, b.binary("Sub", grad, total, dtype), dtype)


@operator(aten._log_softmax.default)
def log_softmax(b: Builder, x: Value, dim: int, half_to_float: bool) -> Value:
    return b.softmax("LogSoftmax", b.cast(x, b.result.dtype), dim)


@operator(aten._log_softmax_backward_data.default)
def log_softmax_backward(b: Builder, grad: Value, y: Value, dim: int, input_dtype: torch.dtype) -> Value:
    """g - exp(y) sum(g)."""
    nll = b.memo.get(("nll gradient", grad))
    if nll is not None and y.ndim == 2 and dim % 2 == 1:
        return _cross_entropy_gradient(b, y, *nll)
    total = b.reduce("ReduceSum", grad, (dim,), True)
    scaled = b.binary("Mul", b.unary("Exp", y), total, y.dtype)
    return b.binary("Sub", grad, scaled, y.dtype)


def _cross_entropy_gradient(b: Builder, y: Value, index: Value, rows: Value) -> Value:
    """Where g is one number a row, at the target's place: (onehot - exp(y)) times that number, kept as a product."""
    rest = b.unary("Neg", b.unary("Exp", y))
    n = y.shape[0]
    ones = b.plain(b.number(1, (n, 1), y.dtype))
    base = b.call(
        "TensorScatterElements", rest, b.reshape(index, (n, 1)), ones, shape=y.shape, axis=1, reduction="add"
    )
    return Value(y.shape, y.dtype, view=Scaled(base, rows))
