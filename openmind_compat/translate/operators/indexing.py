"""Look-ups by index, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from openmind_compat.translate.builder import Builder
from openmind_compat.translate.operators.elementwise import choose
from openmind_compat.translate.registry import operator
from openmind_compat.translate.values import Value, expanded, permuted

aten = torch.ops.aten


@operator(aten.embedding.default)
def embedding(
    b: Builder, weight: Value, index: Value, padding: int = -1, scale: bool = False, sparse: bool = False
) -> Value:
    return b.call("Gather", weight, index, 0, shape=b.result.shape)


@operator(aten.embedding_dense_backward.default)
def embedding_backward(
    b: Builder, grad: Value, index: Value, rows: int, padding: int, scale_grad_by_freq: bool
) -> Value:
    """Adds up the gradients of equal indices. The padding row gets none: its index is made one that no row has."""
    if scale_grad_by_freq:
        raise NotImplementedError("Embedding(scale_grad_by_freq=True) has no translation")
    width = grad.shape[-1]
    index = b.reshape(index, (index.numel,))
    grad = b.reshape(grad, (index.numel, width))
    if padding >= 0:
        is_padding = b.binary("Equal", index, padding, index.dtype, torch.bool)
        index = choose(b, is_padding, b.number(-1, (1,), index.dtype), index, index.dtype, index.shape)
    return b.call("UnsortedSegmentSum", grad, index, rows, shape=(rows, width), dtype=grad.dtype)


@operator(aten.gather.default)
def gather(b: Builder, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    return b.call("GatherD", x, dim, index, shape=index.shape, dtype=x.dtype)


@operator(aten.index_select.default)
def index_select(b: Builder, x: Value, dim: int, index: Value) -> Value:
    return b.call("Gather", x, index, dim, shape=b.result.shape)


@operator(aten.scatter_add.default)
def scatter_add(b: Builder, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _scatter(b, x, dim, index, source, "add")


@operator(aten.scatter.src)
def scatter(b: Builder, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _scatter(b, x, dim, index, source, "none")


def _scatter(b: Builder, x: Value, dim: int, index: Value, source: Value, reduction: str) -> Value:
    if x.ndim == 0:
        x, index, source = (b.reshape(v, (1,)) for v in (x, index, source))
        return b.reshape(_scatter(b, x, 0, index, source, reduction), ())
    if source.shape != index.shape:  # torch reads as much of the source as there are indices
        stop, step = index.shape, (1,) * index.ndim
        source = b.call("StridedSlice", source, (0,) * index.ndim, stop, step, shape=stop)
    return b.call("TensorScatterElements", x, index, source, shape=x.shape, axis=dim % x.ndim, reduction=reduction)


@operator(aten.scatter.value)
def scatter_value(b: Builder, x: Value, dim: int, index: Value, value: float) -> Value:
    return scatter(b, x, dim, index, b.number(value, index.shape, x.dtype))


@operator(aten.index.Tensor)
def index_tensor(b: Builder, x: Value, indices: Sequence[Value | None]) -> Value:
    """``x[i, j, ...]`` with integer tensors: one look-up in ``x`` with the indexed dimensions laid flat."""
    dims = [d for d, i in enumerate(indices) if i is not None]
    flat, rest, index = _flat_index(b, x, indices, dims)
    looked_up = b.call("Gather", flat, index, 0, shape=(*index.shape, *rest), dtype=x.dtype)
    first = dims[0]
    if dims != list(range(first, first + len(dims))) or first == 0:
        return looked_up
    lead = len(index.shape)  # the indexed dimensions stood together: their result takes their place
    order = (*range(lead, lead + first), *range(lead), *range(lead + first, looked_up.ndim))
    return permuted(looked_up, order)


def _flat_index(
    b: Builder, x: Value, indices: Sequence[Value | None], dims: Sequence[int]
) -> tuple[Value, tuple[int, ...], Value]:
    """``x`` with the indexed dimensions merged in front, the lengths of the others, and one index into the former."""
    others = [d for d in range(x.ndim) if d not in dims]
    rest = tuple(x.shape[d] for d in others)
    length = 1
    index: Value | None = None
    for d in dims:
        i = _wrap_negative(b, b.cast(indices[d], torch.int64), x.shape[d])
        length *= x.shape[d]
        if index is None:
            index = i
        else:
            index = b.binary("Add", b.binary("Mul", index, x.shape[d], torch.int64), i, torch.int64)
    front = permuted(x, (*dims, *others))
    return b.reshape(front, (length, *rest)), rest, index


def _wrap_negative(b: Builder, index: Value, length: int) -> Value:
    wrapped = b.binary("Add", index, length, index.dtype)
    negative = b.binary("Less", index, 0, index.dtype, torch.bool)
    return choose(b, negative, wrapped, index, index.dtype, index.shape)


@operator(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    b: Builder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Value:
    dims = [d for d, i in enumerate(indices) if i is not None]
    if len(dims) == 1 and indices[dims[0]].dtype == torch.bool:
        return _masked_put(b, x, indices[dims[0]], dims[0], values, accumulate)
    flat, rest, index = _flat_index(b, x, indices, dims)
    if dims[0] != 0 and dims == list(range(dims[0], dims[0] + len(dims))):
        # values are laid out as x[indices] would be: bring the indexed part to the front
        n, first = index.ndim, dims[0]
        full = (*x.shape[:first], *index.shape, *x.shape[first + len(dims) :])
        values = _broadcast(b, values, full)
        values = permuted(values, (*range(first, first + n), *range(first), *range(first + n, len(full))))
    values = b.cast(_broadcast(b, values, (*index.shape, *rest)), x.dtype)
    where_to = b.reshape(index, (index.numel, 1))
    primitive = "TensorScatterAdd" if accumulate else "TensorScatterUpdate"
    updated = b.call(primitive, flat, where_to, b.reshape(values, (index.numel, *rest)), shape=flat.shape)
    others = [d for d in range(x.ndim) if d not in dims]
    shaped = b.reshape(updated, (*(x.shape[d] for d in dims), *rest))
    order = [*dims, *others]
    return permuted(shaped, tuple(order.index(d) for d in range(x.ndim)))


def _masked_put(b: Builder, x: Value, mask: Value, first: int, values: Value, accumulate: bool) -> Value:
    """``x[mask] = values``, for values that are the same in every place of the mask."""
    after = x.ndim - first - mask.ndim
    values = b.reshape(values, (1,) * (first + 1 + after - values.ndim) + values.shape)
    if values.shape[first] != 1:
        raise NotImplementedError("x[mask] = values with one value for each True: how many there are is unknown here")
    values = b.reshape(values, (*values.shape[:first], *(1,) * mask.ndim, *values.shape[first + 1 :]))
    if accumulate:
        values = b.binary("Add", x, values, x.dtype)
    mask = b.reshape(mask, (*mask.shape, *(1,) * after))
    return choose(b, mask, values, x, x.dtype, x.shape)


def _broadcast(b: Builder, value: Value, shape: tuple[int, ...]) -> Value:
    return expanded(b.reshape(value, (1,) * (len(shape) - value.ndim) + value.shape), shape)


@operator(aten.triu.default)
def triu(b: Builder, x: Value, diagonal: int = 0) -> Value:
    return _triangle(b, x, torch.triu, diagonal)


@operator(aten.tril.default)
def tril(b: Builder, x: Value, diagonal: int = 0) -> Value:
    return _triangle(b, x, torch.tril, diagonal)


def _triangle(b: Builder, x: Value, cut: object, diagonal: int) -> Value:
    mask = b.constant(cut(torch.ones(x.shape[-2:], dtype=torch.bool), diagonal))
    return choose(b, mask, x, b.number(0, (1,) * x.ndim, x.dtype), x.dtype, x.shape)


@operator(aten.masked_scatter.default)
def masked_scatter(b: Builder, x: Value, mask: Value, source: Value) -> Value:
    """``x`` with the elements of ``source``, in order, where ``mask`` holds."""
    rank = b.binary("Maximum", _rank(b, mask, x.shape), 0, torch.int32)
    picked = b.call("Gather", b.reshape(source, (source.numel,)), rank, 0, shape=(x.numel,), dtype=x.dtype)
    return choose(b, mask, b.reshape(picked, x.shape), x, x.dtype, x.shape)


@operator(aten.masked_scatter_backward.default)
def masked_scatter_backward(b: Builder, grad: Value, mask: Value, sizes: Sequence[int]) -> Value:
    rank, size = _rank(b, mask, grad.shape), math.prod(sizes)
    flags = b.reshape(_broadcast(b, mask, grad.shape), (grad.numel,))
    rank = choose(b, flags, rank, b.number(-1, (1,), torch.int32), torch.int32, (grad.numel,))
    total = b.call("UnsortedSegmentSum", b.reshape(grad, (grad.numel,)), rank, size, shape=(size,), dtype=grad.dtype)
    return b.reshape(total, tuple(sizes))


def _rank(b: Builder, mask: Value, shape: tuple[int, ...]) -> Value:
    """How many Trues of the mask, broadcast to this shape, come before each one."""
    flags = b.cast(b.reshape(_broadcast(b, mask, shape), (math.prod(shape),)), torch.int32)
    return b.binary("Sub", b.call("CumSum", flags, 0, shape=flags.shape), 1, torch.int32)
