"""Operators that act on each element alone."""

from __future__ import annotations

import math
from typing import Any

import torch

from openmind_compat.translate.builder import Builder
from openmind_compat.translate.registry import operator
from openmind_compat.translate.values import Padded, Value, expanded, unexpanded

aten = torch.ops.aten


# -- arithmetic --------------------------------------------------------------------------------------------------


@operator(aten.add.Tensor, aten.add.Scalar)
def add(b: Builder, x: Value, y: Value | float, alpha: float = 1) -> Value:
    dtype = b.result.dtype
    if alpha != 1:
        y = b.binary("Mul", y, alpha, dtype)
    joined = _join_padded(b, x, y)
    if joined is not None:
        return joined
    total = b.binary("Add", x, y, dtype)
    if isinstance(y, Value):
        b.memo[("mask of", total)] = y  # what attention adds to its scores, see zero_empty_rows
    return total


def _join_padded(b: Builder, x: Any, y: Any) -> Value | None:
    """Two gradients, each zero where the other is not, that fill a dimension together: a concatenation."""
    if not (isinstance(x, Value) and isinstance(y, Value)):
        return None
    if not (isinstance(x.view, Padded) and isinstance(y.view, Padded)):
        return None
    first, second = sorted((x, y), key=lambda v: v.view.start)
    dim, width = first.view.dim, first.view.base.shape[first.view.dim]
    if (dim, first.view.start, width) != (second.view.dim, 0, second.view.start) or first.dtype != second.dtype:
        return None
    if width + second.view.base.shape[dim] != x.shape[dim]:
        return None
    return b.concat([first.view.base, second.view.base], dim, x.shape)


@operator(aten.sub.Tensor, aten.sub.Scalar)
def sub(b: Builder, x: Value, y: Value | float, alpha: float = 1) -> Value:
    dtype = b.result.dtype
    if alpha != 1:
        y = b.binary("Mul", y, alpha, dtype)
    return b.binary("Sub", x, y, dtype)


@operator(aten.rsub.Scalar, aten.rsub.Tensor)
def rsub(b: Builder, x: Value, y: Value | float, alpha: float = 1) -> Value:
    return sub(b, y, x, alpha)


@operator(aten.mul.Tensor, aten.mul.Scalar)
def mul(b: Builder, x: Value, y: Value | float) -> Value:
    dtype = b.result.dtype
    if dtype == torch.bool:
        return b.binary("LogicalAnd", x, y, dtype)
    for one, other in ((x, y), (y, x)):
        if (one.scalar if isinstance(one, Value) else one) == 1 and isinstance(other, Value):
            other = b.cast(other, dtype)
            if other.shape == tuple(b.result.shape):
                return other
    return b.binary("Mul", x, y, dtype)


@operator(aten.div.Tensor, aten.div.Scalar)
def div(b: Builder, x: Value, y: Value | float) -> Value:
    number = y.scalar if isinstance(y, Value) else y
    if number is not None and isinstance(x, Value) and number and math.frexp(number)[0] == 0.5:
        return b.binary("Mul", x, 1 / number, b.result.dtype)  # a power of two: exact, and cheaper than a division
    return b.binary("RealDiv", x, y, b.result.dtype)


@operator(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(b: Builder, x: Value, y: Value | float, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return div(b, x, y)
    if rounding_mode == "floor":
        return b.binary("FloorDiv", x, y, b.result.dtype)
    dtype = b.result.dtype
    if not dtype.is_floating_point:
        return b.binary("TruncateDiv", x, y, dtype)
    return b.unary("Trunc", b.binary("RealDiv", x, y, dtype))


@operator(aten.floor_divide.default)
def floor_divide(b: Builder, x: Value, y: Value | float) -> Value:
    return b.binary("FloorDiv", x, y, b.result.dtype)


@operator(aten.remainder.Tensor, aten.remainder.Scalar)
def remainder(b: Builder, x: Value, y: Value | float) -> Value:
    return b.binary("FloorMod", x, y, b.result.dtype)


@operator(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(b: Builder, x: Value, y: Value | float) -> Value:
    dtype = b.result.dtype
    if dtype.is_floating_point:
        return b.binary("TruncateMod", x, y, dtype)
    whole = b.binary("Mul", b.binary("TruncateDiv", x, y, dtype), y, dtype)  # TruncateMod has no int64 kernel
    return b.binary("Sub", x, whole, dtype)


@operator(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def power(b: Builder, x: Value | float, exponent: Value | float) -> Value:
    dtype = b.result.dtype
    number = exponent.scalar if isinstance(exponent, Value) else exponent
    if isinstance(x, Value) and number == 0:
        return b.number(1, b.result.shape, dtype)
    if isinstance(x, Value) and number == 1:
        return expanded(b.cast(x, dtype), tuple(b.result.shape))
    if isinstance(x, Value) and number in (2, 3):  # products are exact where Pow goes through exp and log
        x = b.cast(x, dtype)
        square = b.binary("Mul", x, x, dtype)
        return square if number == 2 else b.binary("Mul", square, x, dtype)
    if isinstance(x, Value) and number == 0.5:
        return b.unary("Sqrt", b.cast(x, dtype))
    if isinstance(x, Value) and number == -0.5:
        return b.unary("Rsqrt", b.cast(x, dtype))
    return b.binary("Pow", x, exponent, dtype)


@operator(aten.maximum.default)
def maximum(b: Builder, x: Value, y: Value) -> Value:
    return _bound(b, "Maximum", x, y, b.result.dtype)


@operator(aten.minimum.default)
def minimum(b: Builder, x: Value, y: Value) -> Value:
    return _bound(b, "Minimum", x, y, b.result.dtype)


def _bound(b: Builder, primitive: str, x: Value, y: Value | float, dtype: torch.dtype) -> Value:
    """A maximum or minimum.

    GRAPH mode takes one with a number near the end of float32's range, from half the lowest or highest on, for the
    identity, and drops it; but an infinity lies beyond that number.
    """
    number = y.scalar if isinstance(y, Value) else y
    if number is None or abs(number) < torch.finfo(torch.float32).max / 2:
        return b.binary(primitive, x, y, dtype)
    beyond = b.binary("Less" if primitive == "Maximum" else "Greater", x, y, dtype, torch.bool)
    return choose(b, beyond, b.cast(y, dtype), x, dtype, tuple(b.result.shape))


@operator(aten.clamp.default, aten.clamp.Tensor)
def clamp(b: Builder, x: Value, low: Value | float | None = None, high: Value | float | None = None) -> Value:
    dtype = b.result.dtype
    if low is not None:
        x = _bound(b, "Maximum", x, low, dtype)
    if high is not None:
        x = _bound(b, "Minimum", x, high, dtype)
    return x


@operator(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(b: Builder, x: Value, low: Value | float) -> Value:
    return _bound(b, "Maximum", x, low, b.result.dtype)


@operator(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(b: Builder, x: Value, high: Value | float) -> Value:
    return _bound(b, "Minimum", x, high, b.result.dtype)


# -- functions of one number -------------------------------------------------------------------------------------

_FLOAT_FUNCTIONS = {
    aten.exp.default: "Exp",
    aten.log.default: "Log",
    aten.log1p.default: "Log1p",
    aten.expm1.default: "Expm1",
    aten.sqrt.default: "Sqrt",
    aten.rsqrt.default: "Rsqrt",
    aten.reciprocal.default: "Reciprocal",
    aten.sin.default: "Sin",
    aten.cos.default: "Cos",
    aten.tanh.default: "Tanh",
    aten.tan.default: "Tan",
    aten.asin.default: "Asin",
    aten.acos.default: "ACos",
    aten.atan.default: "Atan",
    aten.sinh.default: "Sinh",
    aten.cosh.default: "Cosh",
    aten.asinh.default: "Asinh",
    aten.acosh.default: "Acosh",
    aten.atanh.default: "Atanh",
    aten.erf.default: "Erf",
    aten.erfc.default: "Erfc",
}
_SAME_FUNCTIONS = {
    aten.neg.default: "Neg",
    aten.abs.default: "Abs",
    aten.sign.default: "Sign",
    aten.relu.default: "ReLU",
    aten.floor.default: "Floor",
    aten.ceil.default: "Ceil",
    aten.round.default: "Round",
    aten.trunc.default: "Trunc",
}


def _enter_functions() -> None:
    def entry(primitive: str) -> Any:
        def function(b: Builder, x: Value) -> Value:
            return b.unary(primitive, b.cast(x, b.result.dtype))

        function.__name__ = primitive
        return function

    for overload, primitive in {**_FLOAT_FUNCTIONS, **_SAME_FUNCTIONS}.items():
        operator(overload)(entry(primitive))


_enter_functions()


@operator(aten.log2.default)
def log2(b: Builder, x: Value) -> Value:
    return b.binary("Mul", b.unary("Log", b.cast(x, b.result.dtype)), 1 / math.log(2), b.result.dtype)


@operator(aten.log10.default)
def log10(b: Builder, x: Value) -> Value:
    return b.binary("Mul", b.unary("Log", b.cast(x, b.result.dtype)), 1 / math.log(10), b.result.dtype)


@operator(aten.exp2.default)
def exp2(b: Builder, x: Value) -> Value:
    return b.unary("Exp", b.binary("Mul", x, math.log(2), b.result.dtype))


@operator(aten.atan2.default)
def atan2(b: Builder, y: Value, x: Value) -> Value:
    return b.binary("Atan2", y, x, b.result.dtype)


@operator(aten._to_copy.default)
def to_copy(b: Builder, x: Value, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    if dtype == torch.bool and x.dtype.is_floating_point:  # a cast would round 0.5 down
        return b.binary("NotEqual", x, 0, x.dtype, torch.bool)
    return b.cast(x, dtype or x.dtype)


# -- activations and their derivatives ---------------------------------------------------------------------------


@operator(aten.sigmoid.default)
def sigmoid(b: Builder, x: Value) -> Value:
    return _sigmoid_of(b, b.cast(x, b.result.dtype))


@operator(aten.silu.default)
def silu(b: Builder, x: Value) -> Value:
    return b.binary("Mul", x, _sigmoid_of(b, x), x.dtype)


def _sigmoid_of(b: Builder, x: Value) -> Value:
    """sigmoid(x), computed once for silu and the backward of it, which torch spells out."""
    key = ("sigmoid", x)
    if key not in b.memo:
        b.memo[key] = b.unary("Sigmoid", x)
    return b.memo[key]


@operator(aten.sigmoid_backward.default)
def sigmoid_backward(b: Builder, grad: Value, y: Value) -> Value:
    return b.binary("Mul", grad, b.binary("Mul", y, b.binary("Sub", 1, y, y.dtype), y.dtype), y.dtype)


@operator(aten.tanh_backward.default)
def tanh_backward(b: Builder, grad: Value, y: Value) -> Value:
    return b.binary("Mul", grad, b.binary("Sub", 1, b.binary("Mul", y, y, y.dtype), y.dtype), y.dtype)


@operator(aten.threshold_backward.default)
def threshold_backward(b: Builder, grad: Value, x: Value, threshold: float) -> Value:
    mask = b.cast(b.binary("Greater", x, threshold, x.dtype, torch.bool), grad.dtype)
    return b.binary("Mul", grad, mask, grad.dtype)


@operator(aten.gelu.default)
def gelu(b: Builder, x: Value, *, approximate: str = "none") -> Value:
    if approximate == "tanh":
        return b.binary("Mul", b.binary("Mul", x, 0.5, x.dtype), b.binary("Add", _gelu_tanh(b, x), 1, x.dtype), x.dtype)
    return b.binary("Mul", x, _normal_cdf(b, x), x.dtype)


def _normal_cdf(b: Builder, x: Value) -> Value:
    """Phi(x) = (1 + erf(x / sqrt 2)) / 2, computed once for a forward and its backward: erf is dear on the CPU."""
    key = ("normal_cdf", x)
    if key not in b.memo:
        erf = b.unary("Erf", b.binary("Mul", x, math.sqrt(0.5), x.dtype))
        b.memo[key] = b.binary("Mul", b.binary("Add", erf, 1, x.dtype), 0.5, x.dtype)
    return b.memo[key]


def _gelu_tanh(b: Builder, x: Value) -> Value:
    """tanh(sqrt(2/pi) (x + 0.044715 x^3))."""
    key = ("gelu_tanh", x)
    if key not in b.memo:
        k = math.sqrt(2 / math.pi)
        cubic = b.binary("Mul", b.binary("Mul", x, x, x.dtype), k * 0.044715, x.dtype)
        inner = b.binary("Mul", x, b.binary("Add", cubic, k, x.dtype), x.dtype)
        b.memo[key] = b.unary("Tanh", inner)
    return b.memo[key]


@operator(aten.gelu_backward.default)
def gelu_backward(b: Builder, grad: Value, x: Value, *, approximate: str = "none") -> Value:
    dtype = x.dtype
    if approximate == "none":  # Phi(x) + x phi(x)
        density = b.unary("Exp", b.binary("Mul", b.binary("Mul", x, x, dtype), -0.5, dtype))
        slope = b.binary("Mul", b.binary("Mul", x, 1 / math.sqrt(2 * math.pi), dtype), density, dtype)
        return b.binary("Mul", grad, b.binary("Add", _normal_cdf(b, x), slope, dtype), dtype)
    t = _gelu_tanh(b, x)
    k = math.sqrt(2 / math.pi)
    half = b.binary("Mul", b.binary("Add", t, 1, dtype), 0.5, dtype)
    inner = b.binary("Add", b.binary("Mul", b.binary("Mul", x, x, dtype), 3 * k * 0.044715, dtype), k, dtype)
    sech = b.binary("Sub", 1, b.binary("Mul", t, t, dtype), dtype)
    slope = b.binary("Mul", b.binary("Mul", b.binary("Mul", x, 0.5, dtype), sech, dtype), inner, dtype)
    return b.binary("Mul", grad, b.binary("Add", half, slope, dtype), dtype)


# -- comparison and logic ----------------------------------------------------------------------------------------


def _operand_dtype(x: Any, y: Any) -> torch.dtype:
    """The dtype in which torch compares two operands."""

    def stand_in(v: Any) -> Any:
        return torch.empty((1,) * v.ndim, dtype=v.dtype, device="meta") if isinstance(v, Value) else v

    return torch.result_type(stand_in(x), stand_in(y))


_COMPARISONS = {
    (aten.eq.Tensor, aten.eq.Scalar): "Equal",
    (aten.ne.Tensor, aten.ne.Scalar): "NotEqual",
    (aten.lt.Tensor, aten.lt.Scalar): "Less",
    (aten.le.Tensor, aten.le.Scalar): "LessEqual",
    (aten.gt.Tensor, aten.gt.Scalar): "Greater",
    (aten.ge.Tensor, aten.ge.Scalar): "GreaterEqual",
}


def _enter_comparisons() -> None:
    def entry(primitive: str) -> Any:
        def compare(b: Builder, x: Value, y: Value | float) -> Value:
            return b.binary(primitive, x, y, _operand_dtype(x, y), torch.bool)

        compare.__name__ = primitive
        return compare

    for overloads, primitive in _COMPARISONS.items():
        operator(*overloads)(entry(primitive))


_enter_comparisons()


def _logical(b: Builder, primitive: str, x: Value, y: Value | float) -> Value:
    return b.binary(primitive, x, y, torch.bool)


@operator(aten.bitwise_and.Tensor, aten.bitwise_and.Scalar, aten.logical_and.default)
def logical_and(b: Builder, x: Value, y: Value) -> Value:
    dtype = b.result.dtype
    return _logical(b, "LogicalAnd", x, y) if dtype == torch.bool else b.binary("BitwiseAnd", x, y, dtype)


@operator(aten.bitwise_or.Tensor, aten.bitwise_or.Scalar, aten.logical_or.default)
def logical_or(b: Builder, x: Value, y: Value) -> Value:
    dtype = b.result.dtype
    return _logical(b, "LogicalOr", x, y) if dtype == torch.bool else b.binary("BitwiseOr", x, y, dtype)


@operator(aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar, aten.logical_xor.default)
def logical_xor(b: Builder, x: Value, y: Value | int) -> Value:
    dtype = b.result.dtype
    return _logical(b, "LogicalXor", x, y) if dtype == torch.bool else b.binary("BitwiseXor", x, y, dtype)


@operator(aten.logical_not.default)
def logical_not(b: Builder, x: Value) -> Value:
    return b.unary("LogicalNot", to_copy(b, x, dtype=torch.bool), torch.bool)


@operator(aten.bitwise_not.default)
def bitwise_not(b: Builder, x: Value) -> Value:
    if x.dtype == torch.bool:
        return b.unary("LogicalNot", x, torch.bool)
    return b.binary("Sub", -1, x, x.dtype)


@operator(aten.isnan.default)
def isnan(b: Builder, x: Value) -> Value:
    return b.unary("IsNan", x, torch.bool)


@operator(aten.isinf.default)
def isinf(b: Builder, x: Value) -> Value:
    return b.unary("IsInf", x, torch.bool)


@operator(aten.where.self, torch.ops.prims.where.default)
def where(b: Builder, condition: Value, x: Value, y: Value) -> Value:
    return choose(b, condition, x, y, b.result.dtype, tuple(b.result.shape))


def choose(b: Builder, condition: Value, x: Value, y: Value, dtype: torch.dtype, shape: tuple[int, ...]) -> Value:
    """Elements of ``x`` where ``condition`` holds, else of ``y``."""
    x, y = b.cast(x, dtype), b.cast(y, dtype)
    condition = to_copy(b, condition, dtype=torch.bool)
    if condition.scalar is not None:
        picked = x if condition.scalar else y
        return expanded(b.reshape(picked, (1,) * (len(shape) - picked.ndim) + picked.shape), shape)
    inner: tuple[int, ...] = ()
    operands = []
    for v in (condition, x, y):
        v = b.reshape(v, (1,) * (len(shape) - v.ndim) + v.shape) if v.ndim < len(shape) else v
        v = unexpanded(v)
        inner = tuple(torch.broadcast_shapes(inner, (1,) * len(shape) if v.scalar is not None else v.shape))
        operands.append(v)
    # Numbers take part as one element: Select broadcasts.
    operands = [b.number(v.scalar, (1,) * len(shape), v.dtype) if v.scalar is not None else v for v in operands]
    return expanded(b.call("Select", *operands, shape=inner, dtype=dtype), shape)


@operator(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(b: Builder, x: Value, mask: Value, value: Value | float) -> Value:
    return choose(b, mask, b.cast(value, x.dtype), x, x.dtype, tuple(b.result.shape))


# -- new tensors -------------------------------------------------------------------------------------------------


@operator(
    aten.zeros_like.default,
    aten.new_zeros.default,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
)
def zeros_like(b: Builder, *_: Any, **__: Any) -> Value:
    return b.number(0, b.result.shape, b.result.dtype)


@operator(aten.ones_like.default, aten.new_ones.default)
def ones_like(b: Builder, *_: Any, **__: Any) -> Value:
    return b.number(1, b.result.shape, b.result.dtype)


@operator(aten.full_like.default, aten.fill.Scalar)
def full_like(b: Builder, x: Value, fill: float, **_: Any) -> Value:
    return b.number(fill, b.result.shape, b.result.dtype)


@operator(aten.new_full.default)
def new_full(b: Builder, x: Value, size: Any, fill: float, **_: Any) -> Value:
    return b.number(fill, b.result.shape, b.result.dtype)


@operator(aten.fill.Tensor)
def fill_tensor(b: Builder, x: Value, fill: Value) -> Value:
    fill = b.cast(fill, x.dtype)
    return expanded(b.reshape(fill, (1,) * x.ndim), x.shape)
