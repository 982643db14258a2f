"""Average pooling. (Maximum pooling is a maximum over windows by torch's own decomposition.)"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from openmind_compat.translate.builder import Builder
from openmind_compat.translate.operators.linear import convolve, convolve_back, geometry_of
from openmind_compat.translate.registry import operator
from openmind_compat.translate.values import Value, permuted

aten = torch.ops.aten


@operator(aten.avg_pool2d.default)
def average_pool(b: Builder, x: Value, kernel: Sequence[int], stride: Sequence[int] = (), *options: Any) -> Value:
    """Sums, by a convolution with ones, times what torch divides each by."""
    weight, geometry, share = _windows(b, x, kernel, stride, *options)
    image = b.reshape(x, (math.prod(x.shape[:-2]), 1, *x.shape[-2:]))
    sums = convolve(b, image, weight, (image.shape[0], 1, *b.result.shape[-2:]), geometry)
    return b.reshape(b.binary("Mul", sums, share, x.dtype), b.result.shape)


@operator(aten.avg_pool2d_backward.default)
def average_pool_backward(
    b: Builder, grad: Value, x: Value, kernel: Sequence[int], stride: Sequence[int], *options: Any
) -> Value:
    weight, geometry, share = _windows(b, x, kernel, stride, *options)
    image = b.reshape(grad, (math.prod(x.shape[:-2]), 1, *grad.shape[-2:]))
    image = b.binary("Mul", image, share, x.dtype)
    return b.reshape(convolve_back(b, image, weight, (image.shape[0], 1, *x.shape[-2:]), geometry), x.shape)


def _windows(
    b: Builder,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int] = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> tuple[Value, dict[str, object], Value]:
    """A filter of ones, its geometry, and 1 over the divisor for each place of the result."""
    stride = stride or kernel
    kernel, stride, padding = (tuple(v) * (2 // len(v)) for v in (kernel, stride, padding))
    ones = torch.ones(1, 1, *x.shape[-2:])
    averages = F.avg_pool2d(ones, kernel, stride, padding, ceil_mode, count_include_pad, divisor)
    sums = F.avg_pool2d(ones, kernel, stride, padding, ceil_mode, divisor_override=1)
    after = (  # with ceil_mode the last window reaches beyond the padding
        max((n - 1) * s + k - length - p, 0)
        for n, s, k, length, p in zip(sums.shape[2:], stride, kernel, x.shape[-2:], padding)
    )
    geometry = geometry_of(stride, padding, (1, 1), 1, 2)
    geometry["pad"] = (padding[0], next(after), padding[1], next(after))
    return b.number(1, (1, 1, *kernel), x.dtype), geometry, b.constant((averages / sums).to(x.dtype))


@operator(aten._adaptive_avg_pool2d_backward.default)
def adaptive_average_pool_backward(b: Builder, grad: Value, x: Value) -> Value:
    """The pool is a product with a matrix along each of two dimensions; this is the product with their transposes."""
    grad = b.reshape(grad, (math.prod(x.shape[:-2]), *grad.shape[-2:]))
    for dim in (-1, -2):
        length, size = grad.shape[-1], x.shape[dim]
        matrix = b.constant(F.adaptive_avg_pool1d(torch.eye(size)[None], length)[0].T.to(x.dtype))
        rows = b.reshape(grad, (grad.numel // length, length))
        product = b.call("MatMul", rows, matrix, shape=(rows.shape[0], size), transpose_a=False, transpose_b=False)
        grad = permuted(b.reshape(product, (*grad.shape[:-1], size)), (0, 2, 1))
    return b.reshape(grad, x.shape)
