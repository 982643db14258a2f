"""Look-ups by index, and their gradients."""

from __future__ import annotations

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
    return b.call("TensorScatterElements", x, index, source, shape=x.shape, axis=dim % x.ndim, reduction="add")


@operator(aten.scatter.src)
def scatter(b: Builder, x: Value, dim: int, index: Value, source: Value) -> Value:
    return b.call("TensorScatterElements", x, index, source, shape=x.shape, axis=dim % x.ndim, reduction="none")


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
