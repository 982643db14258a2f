"""The error for operators that the table lacks."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from openmind_compat.capture.errors import describe_frame, user_frame


class MissingOperatorError(NotImplementedError):
    """The model uses ATen operators without a translation. All of them are named, each with the source line."""


def missing_operators(what: str, nodes: list[torch.fx.Node], rerun: Callable[[], Any]) -> MissingOperatorError:
    """Build the error.

    Args:
        what: Name of the leaf.
        nodes: The graph's nodes whose operator is missing.
        rerun: Runs the leaf once more in torch; finding the source lines is left to the moment they are needed.
    """
    lines = _source_lines({node.target for node in nodes}, rerun)
    names = []
    for target in dict.fromkeys(node.target for node in nodes):
        names.append(f"  {target}\n    at {lines.get(target) or describe_frame(None)}")
    return MissingOperatorError(
        f"{what} uses operators that have no MindSpore translation yet:\n"
        + "\n".join(names)
        + "\n  remedy: write that line with other operators, add an entry for the operator to "
        "openmind_compat/translate/operators/, or train this model with framework='pt'"
    )


class _FindLines(TorchDispatchMode):
    """Notes the source line at which each wanted operator is first called."""

    def __init__(self, wanted: set[Any]) -> None:
        super().__init__()
        self.wanted = wanted
        self.lines: dict[Any, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.wanted and func not in self.lines:
            frame = user_frame(traceback.extract_stack())
            if frame is not None:
                self.lines[func] = describe_frame(frame)
        return func(*args, **(kwargs or {}))


def _source_lines(wanted: set[Any], rerun: Callable[[], Any]) -> dict[Any, str]:
    finder = _FindLines(wanted)
    try:
        with finder:
            rerun()
    except Exception:  # noqa: BLE001 - the lines are a help; without them the operators are named all the same
        pass
    return finder.lines
