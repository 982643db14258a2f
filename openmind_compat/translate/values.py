"""Values of the graph under translation, with views that cost nothing until somebody needs the bytes.

Half of an ATen graph is views: transposes, expands, zero padding of gradients. Many never have to exist: a matrix
product takes its operand transposed, an addition broadcasts, two padded halves that are added are a concatenation.
So a view is kept beside its base and written out only when an operator asks for the plain tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

Shape = tuple[int, ...]


@dataclass(eq=False)
class Value:
    """One tensor of the graph.

    Attributes:
        shape: Shape, always known.
        dtype: torch dtype.
        expr: Python expression that names the plain tensor in the generated source; None while it is only a view.
        scalar: The number, where every element is known to be that number.
        infinite: Whether an element may be infinite, as far as constants and inputs tell (see Builder.softmax).
    """

    shape: Shape
    dtype: torch.dtype
    expr: str | None = None
    scalar: bool | int | float | None = None
    view: Permuted | Expanded | Padded | Scaled | None = None
    infinite: bool = False
    casts: dict[torch.dtype, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.scalar is not None:
            self.infinite = math.isinf(self.scalar)
        elif self.view is not None:
            self.infinite = self.view.base.infinite

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n


@dataclass(frozen=True, eq=False)
class Permuted:
    """``base`` with its dimensions in another order: ``shape[i] = base.shape[order[i]]``."""

    base: Value
    order: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Expanded:
    """``base`` broadcast to a larger shape; ``base`` has as many dimensions, 1 where it is repeated."""

    base: Value


@dataclass(frozen=True, eq=False)
class Padded:
    """``base`` with zeros before and after it along ``dim``; ``start`` zeros come first."""

    base: Value
    dim: int
    start: int


@dataclass(frozen=True, eq=False)
class Scaled:
    """The matrix ``base`` with each row multiplied by its element of ``factor``, shape (rows, 1).

    The gradient of a loss over a vocabulary is such a matrix, by far the largest of a language model, and all that is
    done with it is to multiply it with another: the factors are then applied to the smaller side.
    """

    base: Value
    factor: Value


def permuted(value: Value, order: tuple[int, ...]) -> Value:
    """View with dimensions reordered; two in a row become one, none if they cancel."""
    if isinstance(value.view, Permuted):
        order = tuple(value.view.order[i] for i in order)
        value = value.view.base
    if order == tuple(range(value.ndim)):
        return value
    shape = tuple(value.shape[i] for i in order)
    if value.scalar is not None:
        return Value(shape, value.dtype, scalar=value.scalar)
    if isinstance(value.view, Expanded):
        return expanded(permuted(value.view.base, order), shape)
    return Value(shape, value.dtype, view=Permuted(value, order))


def expanded(value: Value, shape: Shape) -> Value:
    """View broadcast to ``shape``, which has the same number of dimensions."""
    if value.shape == shape:
        return value
    if value.scalar is not None:
        return Value(shape, value.dtype, scalar=value.scalar)
    if isinstance(value.view, Expanded):
        value = value.view.base
    return Value(shape, value.dtype, view=Expanded(value))


def unexpanded(value: Value) -> Value:
    """The value before it was broadcast."""
    return value.view.base if isinstance(value.view, Expanded) else value


def permute_from(value: Value) -> tuple[Value, tuple[int, ...] | None]:
    """Base and order of a permuted view; the value itself and None for anything else."""
    if isinstance(value.view, Permuted):
        return value.view.base, value.view.order
    return value, None
