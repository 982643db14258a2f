"""Operators that only rearrange elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from openmind_compat.translate.builder import Builder
from openmind_compat.translate.registry import operator
from openmind_compat.translate.values import Expanded, Padded, Value, expanded, permuted

aten = torch.ops.aten


@operator(aten.clone.default, aten.detach.default, aten.alias.default)
def identity(b: Builder, x: Value, **_: object) -> Value:
    """Nothing is changed in place in a functional graph, so a copy is the value itself."""
    return x


@operator(aten._assert_tensor_metadata.default, aten._assert_async.msg)
def no_operation(b: Builder, *_: object, **__: object) -> None:
    """Checks of the tracer, true by construction."""
    return None


@operator(
    aten.view.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten._reshape_alias.default,
)
def reshape(b: Builder, x: Value, *_: object) -> Value:
    return b.reshape(x, b.result.shape)


@operator(aten.t.default)
def transpose_matrix(b: Builder, x: Value) -> Value:
    return permuted(x, (1, 0)) if x.ndim == 2 else x


@operator(aten.transpose.int)
def transpose(b: Builder, x: Value, dim0: int, dim1: int) -> Value:
    if x.ndim == 0:
        return x
    order = list(range(x.ndim))
    order[dim0 % x.ndim], order[dim1 % x.ndim] = order[dim1 % x.ndim], order[dim0 % x.ndim]
    return permuted(x, tuple(order))


@operator(aten.permute.default)
def permute(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    return permuted(x, tuple(d % x.ndim for d in dims))


@operator(aten.expand.default)
def expand(b: Builder, x: Value, size: Sequence[int], *, implicit: bool = False) -> Value:
    shape = tuple(b.result.shape)
    return expanded(b.reshape(x, (1,) * (len(shape) - x.ndim) + x.shape), shape)


@operator(aten.slice.Tensor)
def slice_tensor(
    b: Builder, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    start, end, step = slice(start, end, step).indices(x.shape[dim])
    shape = tuple(b.result.shape)
    if shape == x.shape and step == 1:
        return x
    if x.scalar is not None:
        return b.number(x.scalar, shape, x.dtype)
    if isinstance(x.view, Expanded):
        base = x.view.base
        if base.shape[dim] == 1:
            return expanded(base, shape)
        inner = base.shape[:dim] + (shape[dim],) + base.shape[dim + 1 :]
        return expanded(_strided_slice(b, base, dim, start, end, step, inner), shape)
    return _strided_slice(b, x, dim, start, end, step, shape)


def _strided_slice(
    b: Builder, x: Value, dim: int, start: int, end: int, step: int, shape: Sequence[int]
) -> Value:
    begin, stop, strides = [0] * x.ndim, list(x.shape), [1] * x.ndim
    begin[dim], stop[dim], strides[dim] = start, end, step
    return b.call("StridedSlice", x, tuple(begin), tuple(stop), tuple(strides), shape=shape)


@operator(aten.slice_backward.default)
def slice_backward(
    b: Builder, grad: Value, sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Value:
    sizes = tuple(sizes)
    dim %= len(sizes)
    if step == 1:
        return Value(sizes, grad.dtype, view=Padded(grad, dim, slice(start, end).indices(sizes[dim])[0]))
    zero = b.number(0, sizes[:dim] + (1,) + sizes[dim + 1 :], grad.dtype)
    sources = [grad.shape[dim]] * sizes[dim]  # the row of zeros, unless the slice holds this one
    for row, position in enumerate(range(sizes[dim])[slice(start, end, step)]):
        sources[position] = row
    return _gather_rows(b, [grad, zero], sources, dim, sizes)


def _gather_rows(
    b: Builder, parts: Sequence[Value], sources: Sequence[int], dim: int, shape: tuple[int, ...]
) -> Value:
    """Rows of several values, counted through, along one dimension. (StridedSliceGrad fails on the CPU.)"""
    length = sum(part.shape[dim] for part in parts)
    joined = b.concat(parts, dim, shape[:dim] + (length,) + shape[dim + 1 :])
    return b.call("Gather", joined, b.constant(torch.tensor(sources)), dim, shape=shape)


@operator(aten.select.int)
def select(b: Builder, x: Value, dim: int, index: int) -> Value:
    dim %= x.ndim
    index %= x.shape[dim]
    row = x.shape[:dim] + (1,) + x.shape[dim + 1 :]
    return b.reshape(_strided_slice(b, x, dim, index, index + 1, 1, row), b.result.shape)


@operator(aten.select_backward.default)
def select_backward(b: Builder, grad: Value, sizes: Sequence[int], dim: int, index: int) -> Value:
    sizes = tuple(sizes)
    dim %= len(sizes)
    row = b.reshape(grad, sizes[:dim] + (1,) + sizes[dim + 1 :])
    return Value(sizes, grad.dtype, view=Padded(row, dim, index % sizes[dim]))


@operator(aten.slice_scatter.default)
def slice_scatter(
    b: Builder, x: Value, source: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    dim %= x.ndim
    start, end, step = slice(start, end, step).indices(x.shape[dim])
    source = b.cast(source, x.dtype)
    if source.shape == x.shape:
        return source
    size = x.shape[dim]
    if step != 1:
        sources = list(range(size))
        for row, position in enumerate(range(start, end, step)):
            sources[position] = size + row
        return _gather_rows(b, [x, source], sources, dim, x.shape)

    def part(begin: int, stop: int) -> Value | None:
        if begin >= stop:
            return None
        shape = x.shape[:dim] + (stop - begin,) + x.shape[dim + 1 :]
        return b.number(x.scalar, shape, x.dtype) if x.scalar is not None else _strided_slice(
            b, x, dim, begin, stop, 1, shape
        )

    parts = [part(0, start), source, part(max(start, end), size)]
    return b.concat([p for p in parts if p is not None], dim, x.shape)


@operator(aten.select_scatter.default)
def select_scatter(b: Builder, x: Value, source: Value, dim: int, index: int) -> Value:
    dim %= x.ndim
    index %= x.shape[dim]
    row = b.reshape(source, x.shape[:dim] + (1,) + x.shape[dim + 1 :])
    return slice_scatter(b, x, row, dim, index, index + 1)


@operator(aten.cat.default)
def cat(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    shape, dtype = tuple(b.result.shape), b.result.dtype
    parts = [b.cast(t, dtype) for t in tensors if t.numel or t.ndim == len(shape) and t.shape[dim] != 0]
    return b.concat(parts, dim % len(shape), shape) if parts else b.number(0, shape, dtype)


@operator(aten.stack.default)
def stack(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    shape = tuple(b.result.shape)
    dim %= len(shape)
    rows = [b.reshape(b.cast(t, b.result.dtype), t.shape[:dim] + (1,) + t.shape[dim:]) for t in tensors]
    return b.concat(rows, dim, shape)


@operator(aten.split.Tensor, aten.split_with_sizes.default)
def split(b: Builder, x: Value, parts: object, dim: int = 0) -> list[Value]:
    return _pieces(b, x, dim % x.ndim, [fake.shape[dim] for fake in b.result])


@operator(aten.unbind.int)
def unbind(b: Builder, x: Value, dim: int = 0) -> list[Value]:
    dim %= x.ndim
    shape = x.shape[:dim] + x.shape[dim + 1 :]
    return [b.reshape(piece, shape) for piece in _pieces(b, x, dim, [1] * x.shape[dim])]


def _pieces(b: Builder, x: Value, dim: int, widths: Sequence[int]) -> list[Value]:
    start, pieces = 0, []
    for width in widths:
        row = x.shape[:dim] + (width,) + x.shape[dim + 1 :]
        pieces.append(x if row == x.shape else _strided_slice(b, x, dim, start, start + width, 1, row))
        start += width
    return pieces


@operator(aten.constant_pad_nd.default)
def constant_pad(b: Builder, x: Value, pad: Sequence[int], value: float = 0) -> Value:
    """ATen lists the pads from the last dimension on, before and after; a negative one cuts."""
    for i in range(len(pad) // 2):
        dim = x.ndim - 1 - i
        before, after = pad[2 * i], pad[2 * i + 1]
        if before < 0 or after < 0:
            start, end = max(-before, 0), x.shape[dim] - max(-after, 0)
            shape = x.shape[:dim] + (end - start,) + x.shape[dim + 1 :]
            x = _strided_slice(b, x, dim, start, end, 1, shape)
        parts = []
        for width in (before, after):
            shape = x.shape[:dim] + (max(width, 0),) + x.shape[dim + 1 :]
            parts.append(b.number(value, shape, x.dtype) if width > 0 else None)
        length = x.shape[dim] + max(before, 0) + max(after, 0)
        whole = x.shape[:dim] + (length,) + x.shape[dim + 1 :]
        x = b.concat([p for p in (parts[0], x, parts[1]) if p is not None], dim, whole)
    return x


@operator(aten.copy.default)
def copy(b: Builder, x: Value, source: Value, non_blocking: bool = False) -> Value:
    source = b.cast(source, x.dtype)
    return expanded(b.reshape(source, (1,) * (x.ndim - source.ndim) + source.shape), x.shape)


@operator(aten.repeat.default)
def repeat(b: Builder, x: Value, repeats: Sequence[int]) -> Value:
    x = b.reshape(x, (1,) * (len(repeats) - x.ndim) + x.shape)
    if x.scalar is not None:
        return b.number(x.scalar, b.result.shape, x.dtype)
    return b.call("Tile", x, tuple(repeats), shape=b.result.shape)


@operator(aten.flip.default)
def flip(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    return b.call("ReverseV2", x, shape=x.shape, axis=tuple(d % x.ndim for d in dims))


# -- parts of a tensor that are not slices -----------------------------------------------------------------------


@operator(aten.diagonal.default)
def diagonal(b: Builder, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    return _pick(b, x, _positions(x.shape).diagonal(offset, dim1, dim2))


@operator(aten.diagonal_backward.default)
def diagonal_backward(b: Builder, grad: Value, sizes: Sequence[int], offset: int, dim1: int, dim2: int) -> Value:
    return _put(b, grad, _positions(sizes).diagonal(offset, dim1, dim2), sizes)


@operator(aten.diag_embed.default)
def diag_embed(b: Builder, x: Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value:
    shape = tuple(b.result.shape)
    return _put(b, x, _positions(shape).diagonal(offset, dim1, dim2), shape)


@operator(aten.unfold.default)
def unfold(b: Builder, x: Value, dim: int, size: int, step: int) -> Value:
    return _pick(b, x, _positions(x.shape).unfold(dim, size, step))


@operator(aten.unfold_backward.default)
def unfold_backward(b: Builder, grad: Value, sizes: Sequence[int], dim: int, size: int, step: int) -> Value:
    return _put(b, grad, _positions(sizes).unfold(dim, size, step), sizes)


def _positions(shape: Sequence[int]) -> torch.Tensor:
    return torch.arange(math.prod(shape)).reshape(tuple(shape))


def _pick(b: Builder, x: Value, positions: torch.Tensor) -> Value:
    """The elements at these positions in memory order."""
    shape = tuple(positions.shape)
    index = b.constant(positions.flatten())
    return b.reshape(b.call("Gather", b.reshape(x, (x.numel,)), index, 0, shape=(positions.numel(),)), shape)


def _put(b: Builder, x: Value, positions: torch.Tensor, shape: Sequence[int]) -> Value:
    """Zeros with the elements of ``x`` added at these positions: the transpose of :func:`_pick`."""
    size = math.prod(shape)
    index = b.constant(positions.flatten())
    total = b.call("UnsortedSegmentSum", b.reshape(x, (x.numel,)), index, size, shape=(size,), dtype=x.dtype)
    return b.reshape(total, shape)
