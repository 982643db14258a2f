"""Matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from openmind_compat.translate.builder import Builder
from openmind_compat.translate.registry import operator
from openmind_compat.translate.values import Scaled, Shape, Value, permute_from, permuted

aten = torch.ops.aten


def _untransposed(x: Value) -> tuple[Value, bool]:
    """A matrix (or batch of them) as it lies in memory, and whether the product must transpose it."""
    order = x.view.order if x.view is not None and hasattr(x.view, "order") else None
    swap = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    if order is None:
        return x, False
    straight = permuted(x, swap)
    if order == swap or order[-2] > order[-1]:
        return straight, True
    return x, False


@operator(aten.mm.default)
def mm(b: Builder, x: Value, y: Value) -> Value:
    scaled = _scaled_product(b, x, y)
    if scaled is not None:
        return scaled
    (x, tx), (y, ty) = _untransposed(x), _untransposed(y)
    return b.call("MatMul", x, y, shape=b.result.shape, transpose_a=tx, transpose_b=ty)


def _scaled_product(b: Builder, x: Value, y: Value) -> Value | None:
    """Row factors of ``x``, or of ``x`` transposed, applied to the smaller matrix: the product, or ``y``."""
    base, order = permute_from(x)
    if not isinstance(base.view, Scaled) or base.expr is not None:
        return None
    matrix, factor = base.view.base, base.view.factor
    if order is None:
        return b.binary("Mul", mm(b, matrix, y), factor, x.dtype)
    return mm(b, permuted(matrix, order), b.binary("Mul", y, factor, x.dtype))


@operator(aten.bmm.default)
def bmm(b: Builder, x: Value, y: Value) -> Value:
    return batch_matmul(b, x, y)


def batch_matmul(b: Builder, x: Value, y: Value) -> Value:
    """Product of the last two dimensions; the leading ones are equal."""
    shape = (*x.shape[:-1], y.shape[-1])
    (x, tx), (y, ty) = _untransposed(x), _untransposed(y)
    return b.call("BatchMatMul", x, y, shape=shape, transpose_a=tx, transpose_b=ty)


@operator(aten.addmm.default)
def addmm(b: Builder, bias: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    product = mm(b, x, y)
    if alpha != 1:
        product = b.binary("Mul", product, alpha, product.dtype)
    if beta != 1:
        bias = b.binary("Mul", bias, beta, product.dtype)
    if bias.ndim == 1 and bias.shape[0] == product.shape[1]:
        return b.call("BiasAdd", product, bias, shape=product.shape)
    return b.binary("Add", product, bias, product.dtype)


@operator(aten.baddbmm.default)
def baddbmm(b: Builder, bias: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    product = batch_matmul(b, x, y)
    if alpha != 1:
        product = b.binary("Mul", product, alpha, product.dtype)
    if beta == 0:
        return product
    if beta != 1:
        bias = b.binary("Mul", bias, beta, product.dtype)
    return b.binary("Add", product, bias, product.dtype)


@operator(aten.mv.default)
def mv(b: Builder, x: Value, y: Value) -> Value:
    column = b.reshape(y, (y.shape[0], 1))
    (x, tx) = _untransposed(x)
    rows = b.result.shape[0]
    return b.reshape(b.call("MatMul", x, column, shape=(rows, 1), transpose_a=tx, transpose_b=False), (rows,))


@operator(aten.dot.default)
def dot(b: Builder, x: Value, y: Value) -> Value:
    return b.reduce("ReduceSum", b.binary("Mul", x, y, x.dtype), (), False)


# -- convolutions ------------------------------------------------------------------------------------------------


def geometry_of(
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, spatial: int
) -> dict[str, object]:
    """Attributes of MindSpore's 2-d convolutions. One spatial dimension is a second one of length 1."""
    lead = (1,) if spatial == 1 else ()
    vertical, horizontal = ((0,) if spatial == 1 else ()) + tuple(padding)
    pad = (vertical, vertical, horizontal, horizontal)
    return {
        "mode": 1,
        "pad_mode": "pad",
        "pad": pad,
        "stride": (*lead, *stride),
        "dilation": (*lead, *dilation),
        "group": groups,
    }


def _as_image(b: Builder, x: Value, spatial: int) -> Value:
    return b.reshape(x, (*x.shape[:2], 1, x.shape[2])) if spatial == 1 else x


def convolve(b: Builder, x: Value, weight: Value, shape: Shape, geometry: dict[str, object]) -> Value:
    kernel = {"out_channel": weight.shape[0], "kernel_size": tuple(weight.shape[2:]), **geometry}
    return b.call("Conv2D", x, weight, shape=shape, **kernel)


def convolve_back(b: Builder, grad: Value, weight: Value, shape: Shape, geometry: dict[str, object]) -> Value:
    """The gradient of a convolution's input, which has this shape."""
    kernel = {"out_channel": weight.shape[0], "kernel_size": tuple(weight.shape[2:]), **geometry}
    # pad_list repeats pad: PYNATIVE mode does not work it out
    return b.call("Conv2DBackpropInput", grad, weight, shape, shape=shape, pad_list=geometry["pad"], **kernel)


def convolve_filter(b: Builder, grad: Value, x: Value, shape: Shape, geometry: dict[str, object]) -> Value:
    """The gradient of a convolution's filters, which have this shape."""
    kernel = {"out_channel": shape[0], "kernel_size": shape[2:], **geometry}
    return b.call("Conv2DBackpropFilter", grad, x, shape, shape=shape, pad_list=geometry["pad"], **kernel)


def _check_convolution(spatial: int) -> None:
    if spatial not in (1, 2):
        raise NotImplementedError(
            f"{spatial}-dimensional convolution has no translation; train this model with framework='pt'"
        )


@operator(aten.convolution.default)
def convolution(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    spatial = x.ndim - 2
    _check_convolution(spatial)
    x, weight = _as_image(b, x, spatial), _as_image(b, weight, spatial)
    shape = tuple(b.result.shape)
    image = (*shape[:2], 1, shape[2]) if spatial == 1 else shape
    geometry = geometry_of(stride, padding, dilation, groups, spatial)
    y = (convolve_back if transposed else convolve)(b, x, weight, image, geometry)
    if bias is not None:
        y = b.call("BiasAdd", y, bias, shape=image)
    return b.reshape(y, shape)


@operator(aten.convolution_backward.default)
def convolution_backward(
    b: Builder,
    grad: Value,
    x: Value,
    weight: Value,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:
    spatial = x.ndim - 2
    _check_convolution(spatial)
    geometry = geometry_of(stride, padding, dilation, groups, spatial)
    image, filters, g = _as_image(b, x, spatial), _as_image(b, weight, spatial), _as_image(b, grad, spatial)
    grad_x = grad_w = grad_b = None
    if output_mask[0]:
        grad_x = (convolve if transposed else convolve_back)(b, g, filters, image.shape, geometry)
        grad_x = b.reshape(grad_x, x.shape)
    if output_mask[1]:
        ends = (image, g) if transposed else (g, image)
        grad_w = b.reshape(convolve_filter(b, *ends, filters.shape, geometry), weight.shape)
    if output_mask[2]:
        grad_b = b.reduce("ReduceSum", grad, (0, *range(2, grad.ndim)), False)
    return grad_x, grad_w, grad_b
