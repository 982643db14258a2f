"""The operator table: one entry for each ATen overload, filled by the modules in ``operators/``.

An entry is a small function ``entry(b, *args, **kwargs)``: ``b`` is the Builder (``builder.py``) that writes MindSpore
calls, the rest are the operator's own arguments in ATen's order, tensors as Values (``values.py``). It returns the
Value, or the tuple of Values, that the operator yields; ``b.result`` says what shape and dtype torch gives it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OPERATORS: dict[Any, Callable[..., Any]] = {}


def operator(*overloads: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function in the table under one or more ATen overloads; a second entry for one is an error."""

    def enter(entry: Callable[..., Any]) -> Callable[..., Any]:
        for overload in overloads:
            if overload in OPERATORS:
                raise ValueError(f"{overload} has two entries: {OPERATORS[overload].__name__} and {entry.__name__}")
            OPERATORS[overload] = entry
        return entry

    return enter
