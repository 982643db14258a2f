"""Work that does not depend on the batch is done once, in torch, while the graph is translated.

Masks, positions and rotary frequencies are computed by the same code as in eager torch, so they are exact: MindSpore's
own ``log`` on the CPU, for one, is off in the last digit, which moves T5's relative position buckets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def foldable_nodes(graph: torch.fx.Graph, known: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """The nodes that depend on constants and on ``known`` placeholders only, through operators that draw nothing."""
    constant = set(known)
    for node in graph.nodes:
        if node.op == "get_attr":
            constant.add(node)
        elif node.op == "call_function" and _is_pure(node.target) and constant.issuperset(node.all_input_nodes):
            constant.add(node)
    return constant


def _is_pure(target: Any) -> bool:
    is_operator = isinstance(target, torch._ops.OpOverload)
    return not is_operator or torch.Tag.nondeterministic_seeded not in target.tags


def fold(node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
    """Compute a node in torch from its constant arguments."""
    with torch.no_grad():
        return node.target(*args, **kwargs)
