"""What the MindSpore route does not honour, in one table.

Everything that is not in the table is honoured, either by transformers' training loop, which runs as it is (data,
logging, evaluation, saving, schedules, the hub), or by the engine below it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from openmind_compat.log import warn_once

HONOURED_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "sgd")

_ON_TORCH = "remove it, or train on PyTorch with framework='pt'"


@dataclass(frozen=True)
class Verdict:
    """A field of TrainingArguments, for which values there is something to say, and what.

    `kind` is "refused" where the run would not be what the value asks for, and "no_effect" where the run is right
    without it.
    """

    field: str
    applies: Callable[[Any], bool]
    kind: Literal["refused", "no_effect"]
    reason: str
    remedy: str


def _is_set(value: Any) -> bool:
    """Not None and not empty or false: the spellings of "not asked for" that transformers treats alike."""
    return bool(value)


def _is_given(value: Any) -> bool:
    """Not None: for fields where False is a choice too."""
    return value is not None


def _differs_from(default: Any) -> Callable[[Any], bool]:
    return lambda value: value is not None and _plain(value) != default


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _is_other_optimizer(value: Any) -> bool:
    return _plain(value) not in HONOURED_OPTIMIZERS


def _has_value_that_is_set(value: Any) -> bool:
    # transformers fills this dictionary with entries that are all false or zero; those say nothing.
    return any(value.values()) if isinstance(value, dict) else bool(value)


_HALF = "the engine computes in float32 in this release"
_HALF_REMEDY = "remove it and train in float32, or use framework='pt'"
_TORCH_COMPILE = "torch does not run the model here; MindSpore compiles it whole already (mode=0)"
_TPU = "there is no TPU under MindSpore"
_ONE_PROCESS = "it tunes torch's data parallelism over several processes, and this run has one process"
_SHARDING = "it shards torch's modules over devices, and the model runs on one device in MindSpore in this release"
_CHECKPOINTING = "torch's activation checkpointing is not yet turned into MindSpore's recomputation"
_APEX = "Apex is a mixed precision for CUDA, and the engine computes in float32 in this release"


def _refused(field: str, applies: Callable[[Any], bool], reason: str, remedy: str = _ON_TORCH) -> Verdict:
    return Verdict(field, applies, "refused", reason, remedy)


def _no_effect(field: str, applies: Callable[[Any], bool], reason: str) -> Verdict:
    return Verdict(field, applies, "no_effect", reason, "")


VERDICTS: tuple[Verdict, ...] = (
    # precision
    _refused("fp16", _is_set, _HALF, _HALF_REMEDY),
    _refused("bf16", _is_set, _HALF, _HALF_REMEDY),
    _refused("fp16_full_eval", _is_set, _HALF, _HALF_REMEDY),
    _refused("bf16_full_eval", _is_set, _HALF, _HALF_REMEDY),
    _refused("half_precision_backend", lambda value: value == "apex", _APEX),
    _refused("fp16_backend", lambda value: value == "apex", _APEX),
    _no_effect("half_precision_backend", lambda value: value not in (None, "auto", "apex"), _HALF),
    _no_effect("fp16_backend", lambda value: value not in (None, "auto", "apex"), _HALF),
    _no_effect("fp16_opt_level", _differs_from("O1"), _APEX),
    _no_effect("tf32", _is_given, "TF32 is a number format of NVIDIA GPUs under torch"),
    # optimizer
    _refused(
        "optim",
        _is_other_optimizer,
        f"the optimizers that run on MindSpore in this release are {', '.join(HONOURED_OPTIMIZERS)}",
        "use optim='adamw_torch' or optim='sgd', or train on PyTorch with framework='pt'",
    ),
    _refused(
        "adafactor",
        _is_set,
        "it means optim='adafactor', which does not run on MindSpore in this release",
        "use optim='adamw_torch', or train on PyTorch with framework='pt'",
    ),
    # torch's own ways to run a model
    _refused("torch_compile", _is_set, _TORCH_COMPILE),
    _refused("torch_compile_backend", _is_set, _TORCH_COMPILE),
    _refused("torch_compile_mode", _is_set, _TORCH_COMPILE),
    _refused("torchdynamo", _is_set, _TORCH_COMPILE),
    _refused("jit_mode_eval", _is_set, "TorchScript does not run under MindSpore"),
    _refused("use_ipex", _is_set, "Intel's extension optimises torch, which does not run the model here"),
    _refused("use_liger_kernel", _is_set, "Liger's kernels are Triton programs for torch"),
    _refused("gradient_checkpointing", _is_set, _CHECKPOINTING),
    _refused("activation_checkpointing", _is_set, _CHECKPOINTING),
    _refused("neftune_noise_alpha", _is_set, "the noise is added by a hook on torch's embedding, which does not run"),
    _refused(
        "past_index",
        lambda value: value is not None and value >= 0,
        "the captured step cannot carry a model's state from one batch to the next",
    ),
    _refused(
        "debug",
        _is_set,
        "both debug options watch what torch's modules or a TPU do, and neither runs here",
    ),
    _refused(
        "auto_find_batch_size",
        _is_set,
        "it retries after torch's out-of-memory error, which MindSpore does not raise",
        "set per_device_train_batch_size, with gradient_accumulation_steps to keep the total",
    ),
    _no_effect("torch_empty_cache_steps", _is_set, "MindSpore manages the memory, torch holds none on the device"),
    # devices and processes
    _refused("deepspeed", _is_set, _SHARDING),
    _refused("fsdp", _is_set, _SHARDING),
    _no_effect("fsdp_config", _has_value_that_is_set, _SHARDING),
    _no_effect("fsdp_min_num_params", _is_set, _SHARDING),
    _no_effect("fsdp_transformer_layer_cls_to_wrap", _is_set, _SHARDING),
    _refused("parallelism_config", _is_given, _SHARDING),
    _refused("mp_parameters", _is_set, "SageMaker's model parallelism splits torch's modules"),
    _refused("tpu_num_cores", _is_set, _TPU),
    _refused("tpu_metrics_debug", _is_set, _TPU),
    _refused(
        "use_mps_device",
        _is_set,
        "MindSpore has no backend for Apple's GPUs",
        "use device_target='CPU', or train on PyTorch with framework='pt'",
    ),
    _no_effect("ddp_backend", _is_set, _ONE_PROCESS),
    _no_effect("ddp_find_unused_parameters", _is_given, _ONE_PROCESS),
    _no_effect("ddp_bucket_cap_mb", _is_given, _ONE_PROCESS),
    _no_effect("ddp_broadcast_buffers", _is_given, _ONE_PROCESS),
    _no_effect("ddp_static_graph", _is_given, _ONE_PROCESS),
    _no_effect("ddp_timeout", _differs_from(1800), _ONE_PROCESS),
)

# Launchers ask by environment variables for what the fields above ask for. The first group holds a number of
# processes: torchrun and accelerate, three MPIs, msrun and Ascend's older launchers.
_PROCESS_COUNTS = (
    "WORLD_SIZE",
    "PMI_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "MS_WORKER_NUM",
    "RANK_SIZE",
)
_LAUNCHER_SWITCHES = {
    "ACCELERATE_USE_DEEPSPEED": _SHARDING,
    "ACCELERATE_USE_FSDP": _SHARDING,
    "ACCELERATE_USE_MEGATRON_LM": _SHARDING,
    "ACCELERATE_DYNAMO_BACKEND": _TORCH_COMPILE,
    "ACCELERATE_MIXED_PRECISION": _HALF,
}
_OFF = ("", "no", "false", "0", "off")
SINGLE_PROCESS = "training over several processes is not part of the MindSpore route in this release"


def refuse(arguments: Any) -> None:
    """Raise one ValueError that names everything in `arguments`, and in the environment, that cannot be honoured."""
    problems = [
        f"{verdict.field}={_plain(getattr(arguments, verdict.field))!r}: {verdict.reason}. Remedy: {verdict.remedy}."
        for verdict in _that_apply(arguments, "refused")
    ]
    problems.extend(_refused_by_environment())
    if problems:
        raise ValueError(
            "These training arguments cannot be honoured on MindSpore (framework='ms'):\n  - " + "\n  - ".join(problems)
        )


def report_no_effect(arguments: Any) -> None:
    """Warn, once in a process, of what `arguments` sets to no effect."""
    for verdict in _that_apply(arguments, "no_effect"):
        value = _plain(getattr(arguments, verdict.field))
        warn_once(f"{verdict.field}={value!r} has no effect on MindSpore (framework='ms'): {verdict.reason}.")


def _that_apply(arguments: Any, kind: str) -> Iterable[Verdict]:
    # A field that the installed transformers does not have cannot have been set.
    return (
        verdict
        for verdict in VERDICTS
        if verdict.kind == kind
        and hasattr(arguments, verdict.field)
        and verdict.applies(getattr(arguments, verdict.field))
    )


def _refused_by_environment() -> Iterable[str]:
    for name in _PROCESS_COUNTS:
        value = os.environ.get(name, "")
        if value.isdigit() and int(value) > 1:
            yield f"{name}={value} in the environment: {SINGLE_PROCESS}. Remedy: start one process, without a launcher."
    for name, reason in _LAUNCHER_SWITCHES.items():
        value = os.environ.get(name, "")
        if value.strip().lower() not in _OFF:
            yield (
                f"{name}={value} in the environment: {reason}. Remedy: unset it; it comes from `accelerate launch`, "
                "or from earlier TrainingArguments in this process that asked for it on PyTorch."
            )
