"""Which framework computes, and on which device: decided before either is imported."""

from __future__ import annotations

import glob
import importlib.util
import os
from dataclasses import dataclass
from typing import Optional

from openmind_compat.log import warn_once

ENVIRONMENT_VARIABLE = "OPENMIND_FRAMEWORK"
FRAMEWORKS = ("pt", "ms")
DEVICE_TARGETS = ("Ascend", "CPU", "GPU")

INSTALL_MINDSPORE = 'pip install "openmind-compat[mindspore]"'

# What people may write instead, and what was most likely meant. They are refused and not accepted: a value that works
# here and nowhere else would not be understood by the next reader of the script.
_FRAMEWORK_HINTS = {"pytorch": "pt", "torch": "pt", "mindspore": "ms"}
_DEVICE_HINTS = {"npu": "Ascend", "davinci": "Ascend", "cuda": "GPU"}


@dataclass(frozen=True)
class FrameworkChoice:
    """The framework in use, "pt" (PyTorch) or "ms" (MindSpore), and in words why it is that one."""

    name: str
    reason: str


def mindspore_installed() -> bool:
    return importlib.util.find_spec("mindspore") is not None


def ascend_devices() -> list[str]:
    """The Ascend devices that this process can see, e.g. `["/dev/davinci0"]`."""
    return sorted(glob.glob("/dev/davinci[0-9]*"))


def nvidia_devices() -> list[str]:
    return sorted(glob.glob("/dev/nvidia[0-9]*"))


def torch_accelerator() -> Optional[str]:
    """The kind of accelerator that torch can use, e.g. "cuda", or None."""
    import torch

    return torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else None


def choose_framework(requested: Optional[str] = None) -> FrameworkChoice:
    """Choose the framework from `requested`, else from `OPENMIND_FRAMEWORK`, else from what is there.

    Raises ValueError for a name other than "pt" and "ms" (in any case), and ImportError for "ms" where MindSpore is
    not installed.
    """
    from_environment = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if requested is not None:
        return _as_asked(requested, "framework", f"framework={requested!r} was given")
    if from_environment.strip():
        return _as_asked(from_environment, ENVIRONMENT_VARIABLE, f"{ENVIRONMENT_VARIABLE}={from_environment} is set")

    if not mindspore_installed():
        return FrameworkChoice("pt", "MindSpore is not installed")
    devices = ascend_devices()
    if devices:
        return FrameworkChoice("ms", f"MindSpore is installed and there is an Ascend device ({devices[0]})")
    accelerator = torch_accelerator()
    if accelerator is not None:
        return FrameworkChoice("pt", f"there is an accelerator that only PyTorch drives ({accelerator})")
    return FrameworkChoice("ms", "MindSpore is installed and there is no accelerator that only PyTorch drives")


def _as_asked(value: str, source: str, reason: str) -> FrameworkChoice:
    name = value.strip().lower() if isinstance(value, str) else value
    if name not in FRAMEWORKS:
        meant = _FRAMEWORK_HINTS.get(name) if isinstance(name, str) else None
        remedy = f"did you mean {meant!r}?" if meant else f"leave {source} unset to use what is installed."
        raise ValueError(f"{source}={value!r} is no framework. It is 'pt' (PyTorch) or 'ms' (MindSpore); {remedy}")
    if name == "ms" and not mindspore_installed():
        raise ImportError(
            f"{source}={value!r} asks for MindSpore, which is not installed. Install it with\n"
            f"    {INSTALL_MINDSPORE}\n"
            f"or train on PyTorch with {source}='pt'."
        )
    return FrameworkChoice(name, reason)


def normalise_device(value: str) -> str:
    """`value` in MindSpore's spelling ("Ascend", "CPU", "GPU"), whatever its case. Raises ValueError for others."""
    key = value.strip().lower() if isinstance(value, str) else value
    for target in DEVICE_TARGETS:
        if key == target.lower():
            return target
    meant = _DEVICE_HINTS.get(key) if isinstance(key, str) else None
    remedy = f"did you mean {meant!r}?" if meant else "leave it unset to use an Ascend, or the CPU where there is none."
    raise ValueError(f"device_target={value!r} is no device. It is one of {', '.join(DEVICE_TARGETS)}; {remedy}")


def choose_device(requested: str, set_by_user: bool) -> str:
    """The `device_target` for MindSpore: "Ascend", "CPU" or "GPU".

    What the user set is used or, where the device is absent, a ValueError. What the user did not set is the documented
    default, Ascend; where there is none it is the CPU, with one warning in a process.
    """
    if not set_by_user:
        if ascend_devices():
            return "Ascend"
        warn_once(
            "device_target was not set and defaults to 'Ascend', but no Ascend device (/dev/davinci*) is visible: "
            "training on the CPU. Set device_target='CPU' if that is what you want."
        )
        return "CPU"

    target = normalise_device(requested)
    if target == "Ascend" and not ascend_devices():
        raise ValueError(
            f"device_target={requested!r} was set, but no Ascend device (/dev/davinci*) is visible. Set "
            "device_target='CPU' to train on the CPU; on a machine that has an Ascend, check that its driver is "
            "installed (npu-smi info) and that the container was given the device."
        )
    if target == "GPU" and not nvidia_devices():
        raise ValueError(
            f"device_target={requested!r} was set, but no GPU (/dev/nvidia*) is visible. Set device_target='CPU' to "
            "train on the CPU."
        )
    return target
