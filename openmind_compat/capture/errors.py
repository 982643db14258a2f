"""Errors of capture, with the line of the user's source that caused them."""

from __future__ import annotations

import os
import traceback

import torch

# Frames below these folders are machinery, never the line a user can change.
_MACHINERY = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep)


class CaptureError(RuntimeError):
    """The model, or the script's loss, cannot be turned into a graph. The message names the line and the remedy."""


def is_machinery(filename: str) -> bool:
    """Whether a source file belongs to torch or to this package rather than to the model or the script."""
    return filename.startswith(_MACHINERY) or filename.startswith("<")


def user_frame(frames: traceback.StackSummary) -> traceback.FrameSummary | None:
    """The innermost frame of a stack that lies in the model's or the script's own source."""
    return next((frame for frame in reversed(frames) if not is_machinery(frame.filename)), None)


def describe_frame(frame: traceback.FrameSummary | None) -> str:
    """``file:line, in function: source text``; says so when no such line is known."""
    if frame is None:
        return "an operation of torch's own backward, with no line in the model's source"
    return f"{frame.filename}:{frame.lineno}, in {frame.name}: {frame.line}"


def explain_failure(what: str, error: Exception) -> CaptureError:
    """Turn whatever torch raised while tracing into an error that a user can act on."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    where = describe_frame(user_frame(traceback.extract_tb(error.__traceback__)))
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)):
        reason = (
            "it reads a value out of a tensor (`.item()`, `if tensor:`, `nonzero`, indexing with a boolean mask), "
            "which a graph that is compiled once cannot do"
        )
        remedy = "move that line out of the forward pass or the loss, or train this model with framework='pt'"
    else:
        reason = f"{type(error).__name__}: {error}"
        remedy = "correct that line; if the same batch runs on torch, train this model with framework='pt'"
    return CaptureError(f"{what} could not be captured at {where}\n  reason: {reason}\n  remedy: {remedy}")
