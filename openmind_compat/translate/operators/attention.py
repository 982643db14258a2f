"""Scaled dot product attention as torch's fused operators, forward and backward."""

from __future__ import annotations

import math

import torch

from openmind_compat.translate.builder import Builder
from openmind_compat.translate.operators.elementwise import choose
from openmind_compat.translate.operators.linear import batch_matmul
from openmind_compat.translate.operators.reductions import zero_empty_rows
from openmind_compat.translate.registry import operator
from openmind_compat.translate.values import Value, permuted, unexpanded

aten = torch.ops.aten


def _swap(x: Value) -> Value:
    return permuted(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _grouped(b: Builder, x: Value, key: Value) -> Value:
    """``x``, one matrix for each query head, as one for each key head: several query heads may share a key head."""
    if x.shape[1] == key.shape[1]:
        return x
    rows = x.shape[1] // key.shape[1] * x.shape[2]
    return b.reshape(x, (*key.shape[:2], rows, x.shape[-1]))


def _weights(
    b: Builder, query: Value, key: Value, is_causal: bool, mask: Value | None, scale: float | None
) -> tuple[Value, Value, float]:
    """Attention weights, the scaled query they were made from, and the scale. Shapes (B, H, L, S), (B, H, L, E)."""
    scale = scale if scale is not None else 1 / math.sqrt(query.shape[-1])
    scaled = b.binary("Mul", query, scale, query.dtype)  # E is shorter than S: cheaper than scaling the scores
    scores = b.reshape(batch_matmul(b, _grouped(b, scaled, key), _swap(key)), (*query.shape[:-1], key.shape[-2]))
    dtype = scores.dtype
    if is_causal:
        future = torch.full(scores.shape[-2:], torch.finfo(dtype).min, dtype=dtype).triu(1)
        scores = b.binary("Add", scores, b.constant(future), dtype)
    if mask is None:
        return b.softmax("Softmax", scores, -1), scaled, scale
    scores = b.binary("Add", scores, b.spread_once(_additive(b, mask, dtype), scores.shape), dtype)
    scores.infinite = False
    return zero_empty_rows(b, b.softmax("Softmax", scores, -1), mask, -1), scaled, scale


def _additive(b: Builder, mask: Value, dtype: torch.dtype) -> Value:
    """A mask as finite numbers to add to the scores; made once for all layers that share it."""
    key = ("additive", unexpanded(mask))
    if key not in b.memo:
        inner = unexpanded(mask)
        if mask.dtype == torch.bool:
            zero = b.number(0, (1,) * mask.ndim, dtype)
            closed = b.number(torch.finfo(dtype).min, (1,) * mask.ndim, dtype)
            b.memo[key] = choose(b, inner, zero, closed, dtype, inner.shape)
        else:
            b.memo[key] = b.finite(b.cast(inner, dtype))
    return b.memo[key]


@operator(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention(
    b: Builder,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, Value]:
    weights, scaled, scale = _weights(b, query, key, is_causal, attn_mask, scale)
    out = b.reshape(batch_matmul(b, _grouped(b, weights, key), value), b.result[0].shape)
    b.memo[("attention", out)] = (weights, scaled, scale)
    return out, b.number(0, tuple(b.result[1].shape), torch.float32)  # log-sum-exp: only our own backward reads it


@operator(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def attention_backward(
    b: Builder,
    grad: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, Value, Value]:
    saved = b.memo.get(("attention", out))
    weights, scaled, scale = saved or _weights(b, query, key, is_causal, attn_mask, scale)
    dtype = weights.dtype
    grouped = _grouped(b, grad, key)
    grad_value = batch_matmul(b, _swap(_grouped(b, weights, key)), grouped)
    grad_weights = b.reshape(batch_matmul(b, grouped, _swap(value)), weights.shape)
    # sum(dP P) over the keys equals sum(dO O) over the head's width, which is shorter
    total = b.reduce("ReduceSum", b.binary("Mul", grad, out, dtype), (-1,), True)
    grad_scores = b.binary("Mul", weights, b.binary("Sub", grad_weights, total, dtype), dtype)
    grad_scores = _grouped(b, grad_scores, key)
    grad_query = b.reshape(b.binary("Mul", batch_matmul(b, grad_scores, key), scale, dtype), query.shape)
    grad_key = batch_matmul(b, _swap(grad_scores), _grouped(b, scaled, key))
    return grad_query, grad_key, grad_value
