"""TrainingArguments and Seq2SeqTrainingArguments with the fields that choose and set up MindSpore."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Optional

import torch
import transformers

from openmind_compat.arguments import verdicts
from openmind_compat.framework import choose_device, choose_framework, normalise_device
from openmind_compat.log import get_logger, warn_once

GRAPH, PYNATIVE = 0, 1


class DefaultStr(str):
    """A string that nobody chose.

    It tells a default from the same value written by the user, also after argparse, which passes defaults through
    `str()`, and after `dataclasses.replace()`, which passes every value to the constructor again. It is pickled and
    copied as the plain string.
    """

    def __str__(self) -> str:
        return self

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return str, (plain(self),)


def plain(value: str) -> str:
    return str.__str__(value)


@dataclass
class TrainingArguments(transformers.TrainingArguments):
    """`transformers.TrainingArguments`, with these fields in addition:

    framework: "pt" (PyTorch) or "ms" (MindSpore). Left at None, it is taken from the environment variable
        OPENMIND_FRAMEWORK, else from what is installed and which device is there. Afterwards it holds the framework in
        use, and `framework_reason` says in words why it is that one.
    mode: how MindSpore runs the model, 0 (GRAPH: compiled whole) or 1 (PYNATIVE: operator by operator).
    device_target: where MindSpore runs it, "Ascend", "CPU" or "GPU". Left at the default, it is the CPU where there is
        no Ascend; `use_cpu=True` means "CPU" too.

    On MindSpore, an argument that cannot be honoured raises a ValueError that names each such argument with its value,
    the reason and the remedy. "ms" without MindSpore installed is an ImportError.
    """

    framework: Optional[str] = field(
        default=None,
        metadata={"help": "Who computes: pt (PyTorch) or ms (MindSpore). Unless set, chosen by what is there."},
    )
    mode: int = field(
        default=GRAPH,
        metadata={"help": "MindSpore's mode: 0 (GRAPH, compiled whole) or 1 (PYNATIVE, operator by operator)."},
    )
    device_target: str = field(
        default=DefaultStr("Ascend"),
        metadata={"help": "MindSpore's device: Ascend, CPU or GPU. Unless set, CPU where there is no Ascend."},
    )

    # The one that dataclasses would write, here and in transformers' Seq2SeqTrainingArguments, shows the hub token.
    __repr__ = transformers.TrainingArguments.__repr__

    def __post_init__(self) -> None:
        choice = choose_framework(self.framework)
        self.framework, self.framework_reason = choice.name, choice.reason
        if self.mode not in (GRAPH, PYNATIVE):
            raise ValueError(f"mode={self.mode!r} is no mode of MindSpore; set 0 (GRAPH, the default) or 1 (PYNATIVE).")
        if self.framework == "pt":
            self._note_what_only_mindspore_uses()
            super().__post_init__()
        else:
            # First, because transformers' part sets environment variables and joins process groups as asked.
            verdicts.refuse(self)
            self.device_target = self._choose_device()
            self._transformers_post_init_on_mindspore()
            if self.world_size > 1:
                raise ValueError(
                    f"world_size={self.world_size}: {verdicts.SINGLE_PROCESS}. Remedy: start one process, without a "
                    "launcher, or train on PyTorch with framework='pt'."
                )
            verdicts.report_no_effect(self)
        get_logger().info(f"framework: {self.framework}, because {self.framework_reason}")

    def _note_what_only_mindspore_uses(self) -> None:
        if self.mode != GRAPH:
            warn_once(f"mode={self.mode} has no effect on PyTorch (framework='pt'): it is MindSpore's mode.")
        if not isinstance(self.device_target, DefaultStr):
            self.device_target = normalise_device(self.device_target)
            warn_once(
                f"device_target={self.device_target!r} has no effect on PyTorch (framework='pt'): it is MindSpore's "
                "device. PyTorch uses the accelerator that it finds, or the CPU with use_cpu=True."
            )

    def _choose_device(self) -> str:
        set_by_user = not isinstance(self.device_target, DefaultStr)
        # no_cuda is the older spelling, which transformers makes use_cpu only later on.
        spelling = next((name for name in ("use_cpu", "no_cuda") if getattr(self, name, False)), None)
        if spelling is not None:
            if set_by_user and normalise_device(self.device_target) != "CPU":
                raise ValueError(
                    f"{spelling}=True and device_target={self.device_target!r} contradict each other: the one asks for "
                    "the CPU, the other for a device. Remove one of them."
                )
            return "CPU" if set_by_user else DefaultStr("CPU")
        chosen = choose_device(self.device_target, set_by_user)
        return chosen if set_by_user else DefaultStr(chosen)

    def _transformers_post_init_on_mindspore(self) -> None:
        # transformers refuses tf32=True where torch has no such GPU. Here it has no effect, whatever torch has.
        with self._for_now(tf32=None):
            super().__post_init__()
        # transformers 4 sets the device up here only where `framework` says "pt"; rank and world size need it.
        _ = self.device
        # Pinned memory serves copies to torch's accelerator. transformers turns it off with use_cpu for that reason.
        self.dataloader_pin_memory = False

    @cached_property
    def _setup_devices(self) -> torch.device:
        if self.framework != "ms":
            return super()._setup_devices
        # torch holds the data and the user's model while MindSpore computes. Its place is the CPU, also where
        # transformers would take the accelerator (torch_npu makes it take the Ascend that MindSpore works on).
        # A ddp_backend makes accelerate expect a process group, even for one process on the CPU.
        with self._for_now(use_cpu=True, ddp_backend=None):
            return super()._setup_devices

    @contextlib.contextmanager
    def _for_now(self, **values: Any) -> Iterator[None]:
        """Have other `values` while transformers' code runs, and the user's again afterwards."""
        chosen = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(chosen)

    def to_dict(self) -> dict[str, Any]:
        # Trackers and serializers may know the plain type only.
        values = super().to_dict()
        values["device_target"] = plain(values["device_target"])
        return values


@dataclass(repr=False)
class Seq2SeqTrainingArguments(TrainingArguments, transformers.Seq2SeqTrainingArguments):
    """`transformers.Seq2SeqTrainingArguments`, with the fields that `TrainingArguments` adds here."""
