"""Writes the MindSpore calls that the operator table asks for.

The builder works at a level where every shape is known, so an entry of the table may decide with plain Python, and what
comes out is a flat list of primitive calls, one a line: MindSpore parses it quickly and a person can read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from openmind_compat.translate.dtypes import mindspore_name, python_number
from openmind_compat.translate.values import (
    Expanded,
    Padded,
    Permuted,
    Scaled,
    Shape,
    Value,
    expanded,
    permute_from,
    permuted,
    unexpanded,
)

# Elements of a result from which on the CPU's broadcasting kernels cost more than repeating the operand first, and up
# to which a constant is repeated for good.
_SPREAD_FROM, _SPREAD_CONSTANTS_TO = 2**14, 2**22

# Their results are sums or averages of finite things: an infinite mask does not pass through them.
_FINITE = {"MatMul", "BatchMatMul", "Conv2D", "LayerNorm", "Softmax", "Tanh", "Sigmoid", "Exp"}


def _may_be_infinite(arg: Any) -> bool:
    if isinstance(arg, (list, tuple)):
        return any(_may_be_infinite(a) for a in arg)
    return arg.infinite if isinstance(arg, Value) else isinstance(arg, float) and math.isinf(arg)


class Builder:
    """Collects source lines, the primitives they call, and the constants they read.

    Attributes:
        result: Fake tensor (or tuple of them) that torch says the current operator yields: shapes and dtypes.
        device: "CPU", "Ascend" or "GPU": entries with a portable and a fused form choose by it.
        lines: Source lines so far.
        primitives: Attribute name to (primitive class name, attributes).
        constants: Attribute name to torch tensor.
        seed: Seed of the run; ``seeds`` counts the random operators, so that each has a stream of its own.
        memo: Values that a later operator of the same graph can use again (a backward its forward's softmax).
    """

    def __init__(self, device: str, seed: int = 0) -> None:
        self.device = device
        self.seed = seed
        self.seeds = 0
        self.result: Any = None
        self.comment = ""
        self.lines: list[str] = []
        self.primitives: dict[str, tuple[str, dict[str, Any]]] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.memo: dict[Any, Any] = {}
        self._primitive_names: dict[Any, str] = {}
        self._count = 0

    # -- calls ---------------------------------------------------------------------------------------------------

    def call(
        self, primitive: str, *args: Any, shape: Sequence[int], dtype: torch.dtype | None = None, **attributes: Any
    ) -> Value:
        """One call of a primitive with one output.

        ``dtype`` defaults to that of the first tensor argument. An attribute that has the name of an argument here
        takes a trailing underscore (``shape_``).
        """
        if dtype is None:
            dtype = next(a.dtype for a in args if isinstance(a, Value))
        return self.call_many(primitive, *args, outputs=[(tuple(shape), dtype)], **attributes)[0]

    def call_many(
        self, primitive: str, *args: Any, outputs: Sequence[tuple[Shape, torch.dtype]], **attributes: Any
    ) -> list[Value]:
        """One call of a primitive; ``outputs`` lists shape and dtype of all that it returns."""
        source = ", ".join(self._argument(a) for a in args)
        infinite = primitive not in _FINITE and any(_may_be_infinite(a) for a in args) or primitive == "Log"
        values = []
        for shape, dtype in outputs:
            is_float = dtype.is_floating_point
            values.append(Value(tuple(shape), dtype, expr=f"v{self._count}", infinite=infinite and is_float))
            self._count += 1
        names = ", ".join(value.expr for value in values)
        self.lines.append(f"{names} = self.{self._primitive(primitive, attributes)}({source})  # {self.comment}")
        return values

    def _primitive(self, name: str, attributes: dict[str, Any]) -> str:
        key = (name, tuple(sorted(attributes.items())))
        if key not in self._primitive_names:
            attribute = f"{name}_{len(self._primitive_names)}"
            self._primitive_names[key] = attribute
            self.primitives[attribute] = (name, attributes)
        return self._primitive_names[key]

    def _argument(self, arg: Any) -> str:
        if isinstance(arg, Value):
            return self.plain(arg).expr
        if isinstance(arg, torch.dtype):
            return f"mstype.{mindspore_name(arg)}"
        if isinstance(arg, (list, tuple)):
            inner = ", ".join(self._argument(a) for a in arg)
            return f"({inner},)" if len(arg) == 1 else f"({inner})"
        return repr(arg)

    # -- constants -----------------------------------------------------------------------------------------------

    def constant(self, tensor: torch.Tensor) -> Value:
        """A tensor known at translation. Repeated elements are kept as a view, one repeated number as that number."""
        shape = tuple(tensor.shape)
        compact = tensor
        for dim, stride in enumerate(tensor.stride()):
            if stride == 0 and tensor.shape[dim] > 1:
                compact = compact.narrow(dim, 0, 1)
        if compact.numel() and bool((compact == compact.flatten()[0]).all()):
            return self.number(compact.flatten()[0].item(), shape, tensor.dtype)
        name = f"c{len(self.constants)}"
        self.constants[name] = compact.detach().clone(memory_format=torch.contiguous_format)
        infinite = compact.is_floating_point() and bool(compact.isinf().any())
        return expanded(Value(tuple(compact.shape), tensor.dtype, expr=f"self.{name}", infinite=infinite), shape)

    def number(self, number: Any, shape: Sequence[int] = (), dtype: torch.dtype | None = None) -> Value:
        """A tensor all of whose elements are ``number``."""
        if dtype is None:
            dtype = torch.tensor(number).dtype
        return Value(tuple(shape), dtype, scalar=python_number(number, dtype))

    def constant_scalar(self, number: Any, dtype: torch.dtype) -> Value:
        """A 0-d tensor, for primitives that want a tensor where others take a number."""
        name = f"c{len(self.constants)}"
        self.constants[name] = torch.tensor(number, dtype=dtype)
        return Value((), dtype, expr=f"self.{name}")

    # -- plain tensors -------------------------------------------------------------------------------------------

    def plain(self, value: Value) -> Value:
        """The value with its bytes in order: writes out a pending view, once."""
        if value.expr is not None:
            return value
        if value.scalar is not None:
            name = f"c{len(self.constants)}"
            self.constants[name] = torch.full(value.shape, value.scalar, dtype=value.dtype)
            value.expr = f"self.{name}"
        elif isinstance(value.view, Permuted):
            value.expr = self.call("Transpose", self.plain(value.view.base), value.view.order, shape=value.shape).expr
        elif isinstance(value.view, Expanded):
            value.expr = self._broadcast(value.view.base, value.shape).expr
        elif isinstance(value.view, Padded):
            value.expr = self._pad(value).expr
        elif isinstance(value.view, Scaled):
            value.expr = self.binary("Mul", value.view.base, value.view.factor, value.dtype).expr
        else:
            raise AssertionError("a value is neither written nor a view")
        value.view = None
        return value

    def _broadcast(self, base: Value, shape: Shape) -> Value:
        if base.dtype == torch.bool:  # BroadcastTo has no bool kernel on every device
            as_int = self.cast(base, torch.int32)
            return self.cast(self.call("BroadcastTo", as_int, shape=shape, **{"shape_": shape}), torch.bool)
        return self.call("BroadcastTo", base, shape=shape, **{"shape_": shape})

    def _pad(self, value: Value) -> Value:
        view = value.view
        before, length = view.start, view.base.shape[view.dim]
        after = value.shape[view.dim] - before - length
        pieces = []
        for width in (before, after):
            shape = value.shape[: view.dim] + (width,) + value.shape[view.dim + 1 :]
            pieces.append(self.number(0, shape, value.dtype) if width else None)
        return self.concat([p for p in (pieces[0], view.base, pieces[1]) if p is not None], view.dim, value.shape)

    # -- small vocabulary shared by the entries ------------------------------------------------------------------

    def cast(self, value: Value | Any, dtype: torch.dtype) -> Value:
        """The value in another dtype; numbers become values of that dtype."""
        if not isinstance(value, Value):
            return self.number(value, (), dtype)
        if value.dtype == dtype:
            return value
        if value.scalar is not None:
            return self.number(value.scalar, value.shape, dtype)
        if dtype not in value.casts:
            value.casts[dtype] = self.through_view(
                value, lambda x: self.call("Cast", x, dtype, shape=x.shape, dtype=dtype), dtype
            )
        return value.casts[dtype]

    def through_view(self, value: Value, f: Callable[[Value], Value], dtype: torch.dtype | None = None) -> Value:
        """Apply an elementwise function below a transpose or broadcast, so that the view stays a view."""
        if isinstance(value.view, Permuted):
            return permuted(self.through_view(value.view.base, f, dtype), value.view.order)
        if isinstance(value.view, Expanded):
            return expanded(self.through_view(value.view.base, f, dtype), value.shape)
        return f(self.plain(value))

    def unary(self, primitive: str, x: Value, dtype: torch.dtype | None = None, **attributes: Any) -> Value:
        """An elementwise primitive of one operand. ``dtype``: that of the result where it is not the operand's."""
        return self.through_view(
            x, lambda v: self.call(primitive, v, shape=v.shape, dtype=dtype or v.dtype, **attributes)
        )

    def binary(
        self, primitive: str, x: Value | Any, y: Value | Any, dtype: torch.dtype, out: torch.dtype | None = None
    ) -> Value:
        """An elementwise primitive of two operands with broadcasting, computed in ``dtype``, yielding ``out``."""
        x, y = self.cast(x, dtype), self.cast(y, dtype)
        shape = torch.broadcast_shapes(x.shape, y.shape)
        x, y = self._align(x, len(shape)), self._align(y, len(shape))
        (x_base, x_order), (y_base, y_order) = permute_from(x), permute_from(y)
        if x_order and (x_order == y_order or y.scalar is not None):
            inner_y = y_base if y_order else self.number(y.scalar, (), dtype)
            return permuted(self._binary(primitive, x_base, inner_y, out or dtype), x_order)
        if y_order and x.scalar is not None:
            return permuted(self._binary(primitive, self.number(x.scalar, (), dtype), y_base, out or dtype), y_order)
        return expanded(self._binary(primitive, x, y, out or dtype), shape)

    def _align(self, value: Value, ndim: int) -> Value:
        if value.ndim in (0, ndim) or value.scalar is not None:
            return value
        return self.reshape(value, (1,) * (ndim - value.ndim) + value.shape)

    def _binary(self, primitive: str, x: Value, y: Value, out: torch.dtype) -> Value:
        """Broadcasting is left to the primitive; a result smaller than its operands' views stays a view."""
        x, y = unexpanded(x), unexpanded(y)
        if x.scalar is not None and y.scalar is not None:
            x = self.plain(x)
        shape = tuple(torch.broadcast_shapes(*(v.shape for v in (x, y) if v.scalar is None or v.expr)))
        args = [v.scalar if v.scalar is not None and not v.expr else self.spread(v, shape) for v in (x, y)]
        return self.call(primitive, *args, shape=shape, dtype=out)

    def spread(self, x: Value, shape: Shape) -> Value:
        """An operand of an elementwise primitive at the shape of the result, where that is the faster way.

        On the CPU an elementwise kernel that broadcasts takes four to eight times as long as one on equal shapes. A row
        or a column is repeated exactly by a matrix product with ones, which costs less than that; a constant is
        repeated now.
        """
        if self.device != "CPU" or x.shape == shape or x.ndim != len(shape) or math.prod(shape) < _SPREAD_FROM:
            return x
        if x.expr is not None and x.expr.startswith("self.c") and math.prod(shape) <= _SPREAD_CONSTANTS_TO:
            return self._spread_constant(x, shape)
        if x.dtype != torch.float32:
            return x
        for k in range(1, len(shape)):
            rows, columns = math.prod(shape[:k]), math.prod(shape[k:])
            if x.shape[k:] == shape[k:] and math.prod(x.shape[:k]) == 1:
                factors = self._ones((rows, 1)), self.reshape(x, (1, columns))
            elif x.shape[:k] == shape[:k] and math.prod(x.shape[k:]) == 1:
                factors = self.reshape(x, (rows, 1)), self._ones((1, columns))
            else:
                continue
            product = self.call("MatMul", *factors, shape=(rows, columns), transpose_a=False, transpose_b=False)
            product.infinite = x.infinite
            return self.reshape(product, shape)
        return x

    def _spread_constant(self, x: Value, shape: Shape) -> Value:
        key = ("spread", x.expr, shape)
        if key not in self.memo:
            small = self.constants[x.expr.removeprefix("self.")].reshape(x.shape)
            name = f"c{len(self.constants)}"
            self.constants[name] = small.expand(shape).contiguous()
            self.memo[key] = Value(shape, x.dtype, expr=f"self.{name}", infinite=x.infinite)
        return self.memo[key]

    def spread_once(self, x: Value, shape: Shape) -> Value:
        """:meth:`spread` for an operand that many operators share, a mask: repeated once and kept."""
        if self.device != "CPU" or x.shape == shape or math.prod(shape) < _SPREAD_FROM:
            return x
        key = ("spread", x, shape)
        if key not in self.memo:
            self.memo[key] = self.plain(expanded(x, shape))
        return self.memo[key]

    def _ones(self, shape: Shape) -> Value:
        key = ("ones", shape)
        if key not in self.memo:
            self.memo[key] = self.plain(self.number(1, shape, torch.float32))
        return self.memo[key]

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Same elements in order under another shape."""
        shape = tuple(shape)
        if value.shape == shape:
            return value
        if value.scalar is not None:
            return Value(shape, value.dtype, scalar=value.scalar)
        if isinstance(value.view, Expanded):
            base = self._reshape_expanded(value, shape)
            if base is not None:
                return base
        if isinstance(value.view, Permuted):
            kept = self._reshape_swapped(value, shape)
            if kept is not None:
                return kept
        return self.call("Reshape", value, shape, shape=shape)

    def _reshape_expanded(self, value: Value, shape: Shape) -> Value | None:
        """Adding or removing dimensions of length 1 keeps a broadcast a view."""
        long = [d for d in value.shape if d != 1]
        if long != [d for d in shape if d != 1]:
            return None
        lengths = iter([b for b, d in zip(value.view.base.shape, value.shape) if d != 1])
        base_shape = tuple(1 if d == 1 else next(lengths) for d in shape)
        return expanded(self.reshape(value.view.base, base_shape), shape)

    def _reshape_swapped(self, value: Value, shape: Shape) -> Value | None:
        """Merging leading dimensions of a matrix whose last two are swapped keeps the swap a view."""
        if len(shape) < 2 or value.ndim < 3 or shape[-2:] != value.shape[-2:]:
            return None
        base, order = permute_from(value)
        swap = (*range(value.ndim - 2), value.ndim - 1, value.ndim - 2)
        if base.ndim - 1 != order[-2] and order[-1] > order[-2]:
            return None  # the last two are in their natural order: nothing to keep
        straight = permuted(value, swap)
        merged = self.reshape(straight, (*shape[:-2], shape[-1], shape[-2]))
        return permuted(merged, (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))

    def concat(self, values: Sequence[Value], dim: int, shape: Sequence[int]) -> Value:
        values = [self.plain(v) for v in values]
        if len(values) == 1:
            return values[0]
        return self.call("Concat", tuple(values), shape=shape, dtype=values[0].dtype, axis=dim)

    def finite(self, x: Value) -> Value:
        """``x`` with -inf replaced by a very low finite number, where it may hold any.

        MindSpore's softmax on the CPU yields zeros for every row after one that holds -inf. A quarter of the lowest
        number: GRAPH mode takes a maximum with the lowest half of the range for the identity and drops it.
        """
        if not x.infinite or not x.dtype.is_floating_point:
            return x
        lowest = self.binary("Maximum", x, torch.finfo(x.dtype).min / 4, x.dtype)
        lowest.infinite = False
        return lowest

    def softmax(self, primitive: str, x: Value, dim: int) -> Value:
        """``Softmax`` or ``LogSoftmax`` along one dimension."""
        if x.ndim == 0:
            return self.reshape(self.softmax(primitive, self.reshape(x, (1,)), 0), ())
        return self.call(primitive, self.finite(x), shape=x.shape, axis=dim % x.ndim)

    def reduce(
        self, primitive: str, x: Value, dims: Sequence[int], keepdim: bool, dtype: torch.dtype | None = None
    ) -> Value:
        """A reduction over ``dims`` (all if empty)."""
        if x.ndim == 0:
            return x
        dims = tuple(sorted(d % x.ndim for d in dims)) if dims else tuple(range(x.ndim))
        base, order = permute_from(x)
        if order and not keepdim:  # reduce before the transpose: fewer bytes to move
            inner = tuple(sorted(order[d] for d in dims))
            rest = [d for d in range(base.ndim) if d not in inner]
            reduced = self._reduce(primitive, base, inner, False, dtype)
            kept = [order[d] for d in range(x.ndim) if d not in dims]
            return permuted(reduced, tuple(rest.index(d) for d in kept))
        return self._reduce(primitive, x, dims, keepdim, dtype)

    def _reduce(self, primitive: str, x: Value, dims: Shape, keepdim: bool, dtype: torch.dtype | None) -> Value:
        if keepdim:
            shape = tuple(1 if d in dims else n for d, n in enumerate(x.shape))
        else:
            shape = tuple(n for d, n in enumerate(x.shape) if d not in dims)
        return self.call(primitive, x, dims, shape=shape, dtype=dtype or x.dtype, keep_dims=keepdim)
