"""Trace a leaf of the Trainer into one graph of ATen operators, backward included.

The graph is torch's own *joint* graph: the forward pass and torch's autograd formulas for it, in one flat list of
functional operators. So every gradient is torch's (``no_grad`` regions, ``detach``, custom ``autograd.Function`` and
tied weights included), and an operator needs a translation of its forward only.

All contact with torch's private tracing API is in this file.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._export.utils import _compiling_state_context
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from openmind_compat.capture.errors import CaptureError, explain_failure
from openmind_compat.capture.signature import InputLayout, join_inputs

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CapturedGraph:
    """A leaf as a graph.

    The placeholders of ``graph`` are, in order: ``parameters`` (trainable first as named by the module), ``buffers``,
    the tensor inputs, and for a training graph one more, the 0-d gradient of the loss. Its outputs are, in order: the
    tensor leaves of the result, one value for each buffer in ``updated_buffers``, and for a training graph one
    gradient for each name in ``gradients``.
    """

    graph: torch.fx.Graph
    module: torch.fx.GraphModule  # holds the constants that the graph's get_attr nodes name
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    updated_buffers: tuple[str, ...]
    gradients: tuple[str, ...]
    results: InputLayout
    is_training: bool
    side_effects: tuple[str, ...]

    @property
    def placeholders(self) -> list[torch.fx.Node]:
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    @property
    def outputs(self) -> tuple[Any, ...]:
        return tuple(self.graph.output_node().args[0])


def capture(
    leaf: Callable[[Any], Any],
    module: torch.nn.Module,
    tensors: list[torch.Tensor],
    layout: InputLayout,
    *,
    training: bool,
    translated: Collection[Any],
    what: str,
    watch: object | None = None,
) -> CapturedGraph:
    """Trace ``leaf(inputs)``, which calls ``module``, without running it.

    Args:
        leaf: For training returns the 0-d loss; otherwise any nesting of tensors and constants.
        module: The torch model whose parameters and buffers the graph reads.
        tensors: Tensor leaves of the batch, any shape; only shape, dtype and device are looked at.
        layout: Restores the batch from its tensors.
        training: Trace forward and backward, gradients for every parameter that requires one; otherwise forward only,
            under ``no_grad``.
        translated: ATen overloads to leave whole. The rest is decomposed by torch where it knows how.
        what: Name of the leaf for error messages.
        watch: Object whose attributes are checked for traced tensors that the leaf left behind.

    Raises:
        CaptureError: The leaf branches on data, or torch raised; names the source line.
    """
    parameters = dict(module.named_parameters())
    buffers = dict(module.named_buffers())
    result_layout: list[InputLayout] = []

    def flat_leaf(*flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # Buffers are copied first: a leaf may change them in place (batch norm), and inputs may not be mutated.
        own_buffers = [value.clone() for value in flat[len(parameters) : len(parameters) + len(buffers)]]
        state = {
            **{id(old): new for old, new in zip(parameters.values(), flat)},
            **{id(old): new for old, new in zip(buffers.values(), own_buffers)},
        }
        with _replaced_tensors(module, state):
            result = leaf(join_inputs(flat[len(parameters) + len(buffers) :], layout))
            after = dict(module.named_buffers())
        if training:
            _check_loss(result)
        leaves, spec = pytree.tree_flatten(result)
        flags = tuple(isinstance(value, torch.Tensor) for value in leaves)
        result_layout[:] = [
            InputLayout(spec, tuple(None if f else value for value, f in zip(leaves, flags)), flags)
        ]
        # clone: an output may be an input (labels that are handed through), or a view (a loss after squeeze), which the
        # tracer does not allow.
        outputs = [value.clone() for value, flag in zip(leaves, flags) if flag]
        return (*outputs, *(after[name].detach().clone() for name in buffers))

    before = _traced_attributes(watch)
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    arguments = tuple(fake_mode.from_tensor(t) for t in (*parameters.values(), *buffers.values(), *tensors))
    try:
        with _tracing_state(training):
            traced = aot_export_joint_simple(
                flat_leaf,
                arguments,
                trace_joint=training,
                decompositions={op: f for op, f in decomposition_table.items() if op not in translated},
            )
    except Exception as error:
        raise explain_failure(what, error) from error
    expected = len(arguments) + training  # the last one is the gradient of the loss
    if sum(node.op == "placeholder" for node in traced.graph.nodes) != expected:
        raise CaptureError(
            f"{what} uses operators with effects (checks inside torch.linalg, prints), which this graph cannot order; "
            "replace them, or train this model with framework='pt'"
        )
    return _assemble(
        traced,
        parameters,
        tuple(buffers),
        result_layout[0],
        training,
        side_effects=tuple(sorted(_traced_attributes(watch) - before)),
    )


@contextlib.contextmanager
def _replaced_tensors(module: torch.nn.Module, replacements: dict[int, torch.Tensor]) -> Iterator[None]:
    """Let a module compute with other tensors in place of its parameters and buffers, found by identity.

    By identity, because a tied weight has several names, and a shared submodule several paths to one slot.
    """
    saved: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for submodule in module.modules():
            for slots in (submodule._parameters, submodule._buffers):
                for name, tensor in slots.items():
                    if id(tensor) in replacements:
                        saved.append((slots, name, tensor))
                        slots[name] = replacements[id(tensor)]
        yield
    finally:
        for slots, name, tensor in saved:
            slots[name] = tensor


def _check_loss(result: Any) -> None:
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"the loss must be a tensor, got {type(result).__name__}")
    if result.dim() != 0:
        raise ValueError(f"the loss must be a scalar, got shape {tuple(result.shape)}: reduce it, with .mean() say")
    if not result.requires_grad:
        raise ValueError("the loss does not depend on any parameter that requires a gradient")


@contextlib.contextmanager
def _tracing_state(training: bool) -> Iterator[None]:
    """Tell models that they are traced (many skip a branch on data then), and set gradients as the leaf expects."""
    with _compiling_state_context(), torch.set_grad_enabled(training):
        yield


def _assemble(
    traced: torch.fx.GraphModule,
    parameters: dict[str, torch.nn.Parameter],
    buffers: tuple[str, ...],
    results: InputLayout,
    training: bool,
    side_effects: tuple[str, ...],
) -> CapturedGraph:
    """Drop what nobody uses: buffers that did not change, gradients of parameters that the loss does not reach."""
    graph = traced.graph
    output_node = graph.output_node()
    outputs = list(output_node.args[0])
    n_results = sum(results.is_tensor)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]

    kept = outputs[:n_results]
    updated = []
    for i, name in enumerate(buffers):
        value = outputs[n_results + i]
        if _source(value) is not placeholders[len(parameters) + i]:
            updated.append(name)
            kept.append(value)
    gradients = []
    for name, gradient in zip(parameters, outputs[n_results + len(buffers) :]):
        if gradient is not None:
            gradients.append(name)
            kept.append(gradient)
    output_node.args = (tuple(kept),)
    graph.eliminate_dead_code()
    return CapturedGraph(
        graph=graph,
        module=traced,
        parameters=tuple(parameters),
        buffers=buffers,
        updated_buffers=tuple(updated),
        gradients=tuple(gradients),
        results=results,
        is_training=training,
        side_effects=side_effects,
    )


def _source(node: torch.fx.Node) -> torch.fx.Node:
    """Follow copies back to where a value was made."""
    copies = (torch.ops.aten.clone.default, torch.ops.aten.detach.default, torch.ops.aten.alias.default)
    while node.op == "call_function" and node.target in copies:
        node = node.args[0]
    return node


def _traced_attributes(owner: object | None) -> set[str]:
    """Names of attributes that hold a tensor of the trace, alone or in a list or dict: a side effect of the leaf."""

    def is_traced(value: Any) -> bool:
        return isinstance(value, FakeTensor) or type(value).__name__ == "FunctionalTensor"

    found = set()
    for name, value in vars(owner).items() if owner is not None else ():
        members = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        if any(is_traced(member) for member in members):
            found.add(name)
    return found
