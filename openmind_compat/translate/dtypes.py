"""torch dtypes and their MindSpore names."""

from __future__ import annotations

from typing import Any

import torch

_NAMES = {
    torch.bool: "bool_",
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
}


def mindspore_name(dtype: torch.dtype) -> str:
    """Attribute of ``mindspore.common.dtype`` for a torch dtype. Raises TypeError for one that MindSpore lacks."""
    try:
        return _NAMES[dtype]
    except KeyError:
        raise TypeError(f"MindSpore has no dtype for {dtype}") from None


def python_number(number: Any, dtype: torch.dtype) -> bool | int | float:
    """The number as the Python type that belongs to a dtype."""
    if dtype == torch.bool:
        return bool(number)
    if dtype.is_floating_point:
        return float(number)
    return int(number)
