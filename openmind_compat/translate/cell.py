"""Translate a captured graph into a MindSpore Cell whose ``construct`` is a flat list of primitive calls."""

from __future__ import annotations

import importlib.util
import itertools
import operator as python_operator
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from openmind_compat.capture import CapturedGraph
from openmind_compat.runtime import load_mindspore, private_directory
from openmind_compat.translate import operators as _fill_the_table  # noqa: F401
from openmind_compat.translate.builder import Builder
from openmind_compat.translate.dtypes import mindspore_name
from openmind_compat.translate.errors import missing_operators
from openmind_compat.translate.fold import fold, foldable_nodes
from openmind_compat.translate.registry import OPERATORS
from openmind_compat.translate.values import Value

_GENERATED = itertools.count()


@dataclass(frozen=True)
class GraphCell:
    """A translated graph.

    Attributes:
        cell: MindSpore Cell. Takes the tensor inputs of the leaf in order (a training graph one more, the 0-d float32
            gradient of the loss) and returns a flat tuple: the tensor leaves of the leaf's result, then for a training
            graph one gradient for each name in ``CapturedGraph.gradients``. Buffers that the leaf changed are assigned.
        source: Source of its ``construct``, for people.
    """

    cell: Any
    source: str


def translate(
    captured: CapturedGraph,
    parameters: Mapping[str, Any],
    fixed_buffers: Mapping[str, torch.Tensor],
    device: str,
    what: str,
    rerun: Callable[[], Any],
    seed: int = 0,
) -> GraphCell:
    """Write a Cell for a captured graph.

    Args:
        captured: The graph.
        parameters: MindSpore Parameter for each parameter and buffer that the graph reads at run time, by its name in
            the torch module. Tied weights are one Parameter.
        fixed_buffers: Buffers that never change: baked into the graph, and what follows from them computed now.
        device: "CPU", "Ascend" or "GPU".
        what: Name of the leaf, for errors.
        rerun: Runs the leaf in torch, to find source lines when operators are missing.
        seed: Seed for dropout.

    Raises:
        MissingOperatorError: Operators have no entry in the table; all are named.
    """
    builder = Builder(device, seed)
    env: dict[torch.fx.Node, Any] = {}
    inputs = _bind_placeholders(captured, parameters, fixed_buffers, env)
    constant = foldable_nodes(captured.graph, {node for node, value in env.items() if isinstance(value, torch.Tensor)})
    missing = [node for node in captured.graph.nodes if node not in constant and not _has_entry(node)]
    if missing:
        raise missing_operators(what, missing, rerun)
    for node in captured.graph.nodes:
        if node.op == "get_attr":
            env[node] = getattr(captured.module, node.target)
        elif node.op == "call_function":
            args, kwargs = pytree.tree_map_only(torch.fx.Node, env.__getitem__, (node.args, node.kwargs))
            env[node] = fold(node, args, kwargs) if node in constant else _apply(builder, node, args, kwargs)

    values = [env[node] if isinstance(env[node], Value) else builder.constant(env[node]) for node in captured.outputs]
    n_results = sum(captured.results.is_tensor)
    n_buffers = len(captured.updated_buffers)
    returned = [builder.plain(v).expr for v in (*values[:n_results], *values[n_results + n_buffers :])]
    builder.comment = "new value of a buffer"
    for name, value in zip(captured.updated_buffers, values[n_results:]):
        target = Value(value.shape, value.dtype, expr=f"self.p{list(parameters).index(name)}")
        builder.call("Assign", target, value, shape=value.shape)
    source = _write(builder, inputs, returned)
    return GraphCell(_make_cell(source, builder, parameters), source)


def _has_entry(node: torch.fx.Node) -> bool:
    return not isinstance(node.target, torch._ops.OpOverload) or node.target in OPERATORS


def _bind_placeholders(
    captured: CapturedGraph,
    parameters: Mapping[str, Any],
    fixed_buffers: Mapping[str, torch.Tensor],
    env: dict[torch.fx.Node, Any],
) -> list[str]:
    """Give every placeholder its Value; returns the names of construct's arguments."""
    inputs = []
    names = itertools.chain(captured.parameters, captured.buffers)
    positions = {name: i for i, name in enumerate(parameters)}
    for node in captured.placeholders:
        name = next(names, None)
        fake = node.meta["val"]
        if name in fixed_buffers:
            env[node] = fixed_buffers[name]
        elif name is not None:
            env[node] = Value(tuple(fake.shape), fake.dtype, expr=f"self.p{positions[name]}")
        else:
            inputs.append(f"x{len(inputs)}")
            env[node] = Value(tuple(fake.shape), fake.dtype, expr=inputs[-1], infinite=fake.dtype.is_floating_point)
    return inputs


def _apply(builder: Builder, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
    """Write one operator by its entry in the table."""
    if node.target is python_operator.getitem:
        return args[0][args[1]]
    args, kwargs = pytree.tree_map_only(torch.Tensor, builder.constant, (args, kwargs))
    builder.result = node.meta.get("val")
    builder.comment = str(node.target).removesuffix(".default")
    return OPERATORS[node.target](builder, *args, **kwargs)


def _write(builder: Builder, inputs: list[str], returned: list[str]) -> str:
    arguments = ", ".join(["self", *inputs])
    body = "\n        ".join([*builder.lines, f"return ({', '.join(returned)},)"])
    return f"class Graph(nn.Cell):\n    def construct({arguments}):\n        {body}\n"


def _make_cell(source: str, builder: Builder, parameters: Mapping[str, Any]) -> Any:
    """Load the source as a module and give its Cell parameters, constants and primitives.

    It is a file, in a private directory, because GRAPH mode parses the file that a function comes from.
    """
    mindspore = load_mindspore()
    name = f"openmind_compat_graph_{next(_GENERATED)}"
    path = os.path.join(private_directory(), f"{name}.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(source)
    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    module.nn, module.mstype = mindspore.nn, mindspore.common.dtype
    module.inf, module.nan = float("inf"), float("nan")
    sys.modules[name] = module  # where MindSpore looks up the names that the source uses
    specification.loader.exec_module(module)

    cell = module.Graph(auto_prefix=False)
    weakref.finalize(cell, sys.modules.pop, name, None)
    for i, parameter in enumerate(parameters.values()):
        if f"self.p{i}" in source:
            cell.insert_param_to_cell(f"p{i}", parameter, check_name_contain_dot=False)
    for attribute, tensor in builder.constants.items():
        setattr(cell, attribute, to_mindspore(tensor))
    for attribute, (primitive, attributes) in builder.primitives.items():
        arguments = {key.removesuffix("_"): value for key, value in attributes.items()}
        setattr(cell, attribute, find_primitive(primitive)(**arguments))
    return cell


def to_mindspore(tensor: torch.Tensor) -> Any:
    """A MindSpore Tensor with the same shape, dtype and elements."""
    mindspore = load_mindspore()
    array = tensor.detach().cpu().contiguous()
    if array.dtype == torch.bfloat16:
        return mindspore.Tensor(array.float().numpy()).astype(mindspore.bfloat16)
    return mindspore.Tensor(np.array(array.numpy()), getattr(mindspore.common.dtype, mindspore_name(array.dtype)))


def find_primitive(name: str) -> Any:
    """A primitive class by name, wherever this MindSpore keeps it."""
    for module in ("mindspore.ops.operations", "mindspore.ops.operations._grad_ops", "mindspore.ops.auto_generate"):
        found = getattr(importlib.import_module(module), name, None)
        if found is not None:
            return found
    raise AttributeError(f"MindSpore has no primitive {name}")
