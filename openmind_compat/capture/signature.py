"""What a batch looks like: the key under which a captured graph is kept.

A graph is valid for one structure of inputs: the same nesting, the same shapes and dtypes of the tensors, the same
values of everything that is not a tensor (those are baked into the graph, so they belong to the key).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Signature:
    """Hashable description of a nested batch.

    ``tensors`` holds (shape, dtype) of every tensor leaf in order; ``others`` the position and ``repr`` of every other
    leaf; ``structure`` the nesting.
    """

    structure: str
    tensors: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    others: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class InputLayout:
    """How to put the tensor leaves of a batch back into its nesting."""

    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]  # None where a tensor goes, the constant elsewhere
    is_tensor: tuple[bool, ...]


def split_inputs(inputs: Any) -> tuple[list[torch.Tensor], InputLayout, Signature]:
    """Take a nested batch apart into its tensors, the layout that restores it, and its signature."""
    leaves, spec = pytree.tree_flatten(inputs)
    is_tensor = tuple(isinstance(leaf, torch.Tensor) for leaf in leaves)
    tensors = [leaf for leaf, flag in zip(leaves, is_tensor) if flag]
    others = tuple((i, repr(leaf)) for i, (leaf, flag) in enumerate(zip(leaves, is_tensor)) if not flag)
    layout = InputLayout(spec, tuple(None if flag else leaf for leaf, flag in zip(leaves, is_tensor)), is_tensor)
    signature = Signature(str(spec), tuple((tuple(t.shape), t.dtype) for t in tensors), others)
    return tensors, layout, signature


def join_inputs(tensors: Sequence[torch.Tensor], layout: InputLayout) -> Any:
    """Inverse of :func:`split_inputs`."""
    remaining = iter(tensors)
    leaves = [next(remaining) if flag else leaf for leaf, flag in zip(layout.leaves, layout.is_tensor)]
    return pytree.tree_unflatten(leaves, layout.spec)
