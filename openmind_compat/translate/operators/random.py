"""Dropout and random numbers. They come from MindSpore's own generator, seeded where the Cell is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from openmind_compat.translate.builder import Builder
from openmind_compat.translate.registry import operator
from openmind_compat.translate.values import Value

aten = torch.ops.aten


@operator(aten.native_dropout.default)
def dropout(b: Builder, x: Value, p: float, train: bool | None) -> tuple[Value, Value]:
    """Yields the output, scaled by 1 / (1 - p), and the mask of what was kept."""
    if train is False or p == 0:
        return x, b.number(True, x.shape, torch.bool)
    if p == 1:
        return b.number(0, x.shape, x.dtype), b.number(False, x.shape, torch.bool)
    mask = _keep_mask(b, x, p)
    return b.binary("Mul", x, b.binary("Mul", mask, 1 / (1 - p), x.dtype), x.dtype), mask


def _keep_mask(b: Builder, x: Value, p: float) -> Value:
    """1 with probability 1 - p, else 0, in the dtype of ``x``. Each call has a stream of its own."""
    b.seeds += 1
    ones = b.plain(b.number(1, x.shape, x.dtype))
    _, mask = b.call_many(
        "Dropout",
        ones,
        outputs=[(x.shape, x.dtype), (x.shape, x.dtype)],
        keep_prob=1 - p,
        Seed0=b.seed,
        Seed1=b.seeds,
    )
    return mask


@operator(aten.native_dropout_backward.default)
def dropout_backward(b: Builder, grad: Value, mask: Value, scale: float) -> Value:
    kept = b.binary("Mul", grad, scale, grad.dtype)
    return b.binary("Mul", kept, mask, grad.dtype)


@operator(aten.bernoulli.p)
def bernoulli(b: Builder, x: Value, p: float) -> Value:
    return _keep_mask(b, x, 1 - p)


@operator(aten.rand.default, aten.rand_like.default)
def uniform(b: Builder, *_: Any, **__: Any) -> Value:
    return _draw(b, "UniformReal")


@operator(aten.randn_like.default)
def normal(b: Builder, *_: Any, **__: Any) -> Value:
    return _draw(b, "StandardNormal")


@operator(torch.ops.prims.normal.default)
def normal_with(b: Builder, shape: Sequence[int], *, mean: float, std: float, **_: Any) -> Value:
    dtype = b.result.dtype
    return b.binary("Add", b.binary("Mul", _draw(b, "StandardNormal"), std, dtype), mean, dtype)


@operator(aten.normal_functional.default)
def normal_like(b: Builder, x: Value, mean: float = 0.0, std: float = 1.0, **_: Any) -> Value:
    return normal_with(b, x.shape, mean=mean, std=std)


@operator(torch.ops.prims.uniform.default)
def uniform_between(b: Builder, shape: Sequence[int], *, low: float, high: float, **_: Any) -> Value:
    dtype = b.result.dtype
    return b.binary("Add", b.binary("Mul", _draw(b, "UniformReal"), high - low, dtype), low, dtype)


def _draw(b: Builder, primitive: str) -> Value:
    """New numbers at each run, from a stream of their own."""
    shape = tuple(b.result.shape)
    b.seeds += 1
    numbers = b.call(primitive, shape or (1,), shape=shape or (1,), dtype=torch.float32, seed=b.seed, seed2=b.seeds)
    return b.cast(b.reshape(numbers, shape), b.result.dtype)
