"""TrainingArguments: the added fields, what is handed to transformers, and what MindSpore does not honour."""

import copy
import dataclasses
import io
import logging
import os
import pickle

import pytest
import torch
import transformers
from transformers import HfArgumentParser

from openmind_compat import Seq2SeqTrainingArguments, TrainingArguments, framework, log
from openmind_compat.arguments.verdicts import HONOURED_OPTIMIZERS, VERDICTS

BOTH = pytest.mark.parametrize("cls", [TrainingArguments, Seq2SeqTrainingArguments])

# A value for each row of the table. The first test below fails for a row that has none.
REFUSED = {
    "fp16": True,
    "bf16": True,
    "fp16_full_eval": True,
    "bf16_full_eval": True,
    "half_precision_backend": "apex",
    "fp16_backend": "apex",
    "optim": "adafactor",
    "adafactor": True,
    "torch_compile": True,
    "torch_compile_backend": "inductor",
    "torch_compile_mode": "max-autotune",
    "torchdynamo": "eager",
    "jit_mode_eval": True,
    "use_ipex": True,
    "use_liger_kernel": True,
    "gradient_checkpointing": True,
    "activation_checkpointing": True,
    "neftune_noise_alpha": 5.0,
    "past_index": 0,
    "debug": "underflow_overflow",
    "auto_find_batch_size": True,
    "deepspeed": {"zero_optimization": {"stage": 2}},
    "fsdp": "full_shard",
    "parallelism_config": object(),
    "mp_parameters": '{"partitions": 2}',
    "tpu_num_cores": 8,
    "tpu_metrics_debug": True,
    "use_mps_device": True,
}
NO_EFFECT = {
    "half_precision_backend": "cuda_amp",
    "fp16_backend": "cuda_amp",
    "fp16_opt_level": "O2",
    "tf32": True,
    "torch_empty_cache_steps": 10,
    "fsdp_config": {"min_num_params": 1000},
    "fsdp_min_num_params": 1000,
    "fsdp_transformer_layer_cls_to_wrap": "BertLayer",
    "ddp_backend": "gloo",
    "ddp_find_unused_parameters": False,
    "ddp_bucket_cap_mb": 50,
    "ddp_broadcast_buffers": False,
    "ddp_static_graph": True,
    "ddp_timeout": 60,
}
FIELDS = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
REFUSED_HERE = {name: value for name, value in REFUSED.items() if name in FIELDS}
NO_EFFECT_HERE = {name: value for name, value in NO_EFFECT.items() if name in FIELDS}


@pytest.fixture(autouse=True)
def _one_process_with_a_cpu(monkeypatch):
    """No Ascend, no accelerator, MindSpore installed, and nothing in the environment from a launcher."""
    for name in ("OPENMIND_FRAMEWORK", "WORLD_SIZE", "RANK_SIZE", "MS_WORKER_NUM"):
        monkeypatch.delenv(name, raising=False)
    # Registered with monkeypatch, so that what transformers writes into it is undone.
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setattr(framework, "ascend_devices", lambda: [])
    monkeypatch.setattr(framework, "torch_accelerator", lambda: None)


@pytest.fixture
def lines(monkeypatch):
    """What is logged, as (level, message), with transformers at INFO."""
    monkeypatch.setattr(log, "_already_warned", set())
    seen = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append((record.levelname, record.getMessage()))
    logger = log.get_logger()
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_info()
    logger.addHandler(handler)
    yield seen
    logger.removeHandler(handler)
    transformers.logging.set_verbosity(verbosity)


def on_mindspore(cls=TrainingArguments, **values):
    return cls(output_dir="out", framework="ms", report_to="none", **values)


def test_each_row_is_exercised():
    assert {row.field for row in VERDICTS if row.kind == "refused"} == set(REFUSED)
    assert {row.field for row in VERDICTS if row.kind == "no_effect"} == set(NO_EFFECT)


@pytest.mark.parametrize("name", REFUSED_HERE)
def test_refused(name):
    value = REFUSED_HERE[name]
    row = next(row for row in VERDICTS if row.field == name and row.kind == "refused")
    before = dict(os.environ)
    with pytest.raises(ValueError) as error:
        on_mindspore(**{name: value})
    assert f"{name}={value!r}: {row.reason}. Remedy: {row.remedy}." in str(error.value)
    assert len(str(error.value).splitlines()) == 2, "one field was set, one is named"
    assert dict(os.environ) == before, "a refused argument changes nothing for the next run"


def test_all_refused_are_named_together():
    with pytest.raises(ValueError) as error:
        on_mindspore(fp16=True, gradient_checkpointing=True, optim=transformers.training_args.OptimizerNames.LION)
    for text in ("fp16=True", "gradient_checkpointing=True", "optim='lion_32bit'"):
        assert text in str(error.value)


def test_default_fields_are_not_spoken_of(lines):
    on_mindspore(device_target="CPU")
    assert [level for level, _ in lines] == ["INFO"]


@pytest.mark.parametrize("name", NO_EFFECT_HERE)
@pytest.mark.filterwarnings("ignore")  # transformers' own, on deprecated names
def test_no_effect_is_said_once(name, lines):
    value = NO_EFFECT_HERE[name]
    for _ in range(2):
        arguments = on_mindspore(device_target="CPU", **{name: copy.copy(value)})
    assert arguments.framework == "ms"
    about = [message for level, message in lines if level == "WARNING" and message.startswith(f"{name}=")]
    assert len(about) == 1
    assert "has no effect on MindSpore" in about[0]


@pytest.mark.parametrize("name", ["tf32", "ddp_backend"])
def test_no_effect_value_is_still_there(name):
    assert getattr(on_mindspore(device_target="CPU", **{name: NO_EFFECT[name]}), name) == NO_EFFECT[name]


@pytest.mark.parametrize("optimizer", HONOURED_OPTIMIZERS)
def test_honoured_optimizers(optimizer):
    as_enum = transformers.training_args.OptimizerNames(optimizer)
    assert on_mindspore(device_target="CPU", optim=optimizer).optim == as_enum
    assert on_mindspore(device_target="CPU", optim=as_enum).optim == as_enum


def test_torch_refuses_nothing_of_this():
    arguments = TrainingArguments("out", framework="pt", gradient_checkpointing=True, optim="adafactor")
    assert (arguments.framework, arguments.gradient_checkpointing) == ("pt", True)


@pytest.mark.parametrize("name", ["WORLD_SIZE", "MS_WORKER_NUM", "OMPI_COMM_WORLD_SIZE", "RANK_SIZE"])
def test_several_processes(monkeypatch, name):
    monkeypatch.setenv(name, "2")
    with pytest.raises(ValueError, match=f"{name}=2 in the environment.*several processes.*start one process"):
        on_mindspore()


def test_one_process_under_a_launcher(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert on_mindspore(device_target="CPU").world_size == 1


@pytest.mark.parametrize(("name", "value"), [("ACCELERATE_MIXED_PRECISION", "bf16"), ("ACCELERATE_USE_FSDP", "true")])
def test_accelerate_launch(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name}={value} in the environment.*Remedy: unset it"):
        on_mindspore()


@BOTH
def test_framework_reads_what_is_in_use(cls, lines, monkeypatch):
    for name in ("pt", "ms"):
        lines.clear()
        arguments = cls("out", framework=name, report_to="none", device_target="CPU")
        assert arguments.framework == name
        assert [text for level, text in lines if level == "INFO"] == [
            f"framework: {name}, because framework={name!r} was given"
        ]
    monkeypatch.setenv("OPENMIND_FRAMEWORK", "pt")
    assert cls("out").framework == "pt"
    assert "OPENMIND_FRAMEWORK" in cls("out").framework_reason


def test_framework_errors_come_from_the_constructor(monkeypatch):
    with pytest.raises(ValueError, match="framework='pytorch'.*'pt'"):
        TrainingArguments("out", framework="pytorch")
    monkeypatch.setattr(framework, "mindspore_installed", lambda: False)
    with pytest.raises(ImportError, match="pip install"):
        TrainingArguments("out", framework="ms")
    assert TrainingArguments("out").framework == "pt"


@pytest.mark.parametrize("mode", [2, -1, "0", None])
@pytest.mark.parametrize("name", ["ms", "pt"])
def test_mode_that_is_none(mode, name):
    with pytest.raises(ValueError, match=r"mode=.*0 \(GRAPH"):
        TrainingArguments("out", framework=name, mode=mode)


def test_default_device_falls_back_with_one_warning(lines):
    for _ in range(2):
        assert on_mindspore().device_target == "CPU"
    assert [level for level, _ in lines].count("WARNING") == 1


def test_device_that_is_absent():
    with pytest.raises(ValueError, match="device_target='Ascend'.*device_target='CPU'"):
        on_mindspore(device_target="Ascend")


def test_device_that_is_there(monkeypatch, lines):
    monkeypatch.setattr(framework, "ascend_devices", lambda: ["/dev/davinci0"])
    assert on_mindspore().device_target == "Ascend"
    assert on_mindspore(device_target="ascend").device_target == "Ascend"
    assert on_mindspore(device_target="cpu").device_target == "CPU"
    assert on_mindspore(use_cpu=True).device_target == "CPU"
    assert "WARNING" not in [level for level, _ in lines]


def test_use_cpu_is_silent_and_contradicts_a_device(lines):
    arguments = on_mindspore(use_cpu=True)
    assert (arguments.device_target, arguments.use_cpu) == ("CPU", True)
    assert on_mindspore(use_cpu=True, device_target="cpu").device_target == "CPU"
    assert "WARNING" not in [level for level, _ in lines]
    with pytest.raises(ValueError, match="use_cpu=True and device_target='Ascend' contradict"):
        on_mindspore(use_cpu=True, device_target="Ascend")


def test_fields_of_mindspore_on_torch(lines):
    TrainingArguments("out", framework="pt", report_to="none")
    assert "WARNING" not in [level for level, _ in lines]
    for _ in range(2):
        arguments = TrainingArguments("out", framework="pt", report_to="none", mode=1, device_target="ascend")
    assert (arguments.mode, arguments.device_target) == (1, "Ascend")
    warned = [text for level, text in lines if level == "WARNING"]
    assert [text.split("=")[0] for text in warned] == ["mode", "device_target"]
    assert all("no effect on PyTorch" in text for text in warned)


@BOTH
def test_torch_stays_on_the_cpu(cls, monkeypatch):
    """As on a machine with torch_npu, where transformers would take the device that MindSpore works on."""
    from accelerate.state import PartialState

    monkeypatch.setattr(transformers.training_args, "is_torch_npu_available", lambda *args: True)
    monkeypatch.setattr(PartialState, "default_device", property(lambda self: torch.device("meta")))
    arguments = cls("out", framework="ms", device_target="CPU", report_to="none")
    assert arguments.device == torch.device("cpu")
    assert (arguments.use_cpu, arguments.n_gpu, arguments.world_size) == (False, 0, 1)
    assert PartialState().device == torch.device("cpu")
    PartialState._reset_state()


@BOTH
@pytest.mark.parametrize("name", ["ms", "pt"])
def test_everything_else_is_as_in_transformers(cls, name):
    theirs = getattr(transformers, cls.__name__)(output_dir="out", logging_dir="logs").to_dict()
    ours = cls(output_dir="out", logging_dir="logs", framework=name).to_dict()
    added = {field: ours.pop(field) for field in ("framework", "mode", "device_target")}
    assert added["framework"] == name
    if name == "ms":
        assert ours.pop("dataloader_pin_memory") is False
        assert theirs.pop("dataloader_pin_memory") is True
    assert ours == theirs


@BOTH
@pytest.mark.parametrize("name", ["ms", "pt"])
def test_argparse(cls, name, lines):
    (arguments,) = HfArgumentParser(cls).parse_args_into_dataclasses(
        ["--output_dir", "out", "--framework", name, "--learning_rate", "0.5", "--report_to", "none"]
    )
    assert (arguments.framework, arguments.mode, arguments.learning_rate) == (name, 0, 0.5)
    assert arguments.device_target == ("CPU" if name == "ms" else "Ascend")
    # Not set on the command line is not set: a warning about the fallback on MindSpore, none on torch.
    assert [level for level, _ in lines].count("WARNING") == (1 if name == "ms" else 0)

    (arguments,) = HfArgumentParser(cls).parse_args_into_dataclasses(
        ["--output_dir", "out", "--framework", "ms", "--device_target", "cpu", "--mode", "1", "--report_to", "none"]
    )
    assert (arguments.device_target, arguments.mode) == ("CPU", 1)
    with pytest.raises(ValueError, match="device_target='Ascend' was set"):
        HfArgumentParser(cls).parse_args_into_dataclasses(["--framework", "ms", "--device_target", "Ascend"])


def test_seq2seq_fields():
    arguments = on_mindspore(Seq2SeqTrainingArguments, device_target="CPU", predict_with_generate=True)
    assert isinstance(arguments, transformers.Seq2SeqTrainingArguments)
    assert isinstance(arguments, TrainingArguments)
    assert arguments.predict_with_generate and arguments.generation_max_length is None


@BOTH
@pytest.mark.parametrize("name", ["ms", "pt"])
@pytest.mark.filterwarnings("ignore:.*push_to_hub_token:FutureWarning")  # to_dict() names it, and so it is passed
def test_copies(cls, name, lines):
    arguments = cls("out", framework=name, learning_rate=0.5, report_to="none")
    buffer = io.BytesIO()
    torch.save(arguments, buffer)
    buffer.seek(0)
    copies = {
        "pickle": pickle.loads(pickle.dumps(arguments)),
        "deepcopy": copy.deepcopy(arguments),
        "torch.save": torch.load(buffer, weights_only=False),
        "constructor": cls(**arguments.to_dict()),
    }
    for how, other in copies.items():
        assert type(other) is cls, how
        assert other.to_dict() == arguments.to_dict(), how
        assert type(other.device_target) is str, how
    assert type(arguments.to_dict()["device_target"]) is str


def test_replace_knows_what_the_user_set(lines):
    on_torch = TrainingArguments("out", framework="pt", report_to="none")
    moved = dataclasses.replace(on_torch, framework="ms")
    assert (moved.framework, moved.device_target) == ("ms", "CPU")
    lines.clear()
    assert dataclasses.replace(moved, framework="pt").device_target == "CPU"
    assert "WARNING" not in [level for level, _ in lines], "the device was never set by the user"


@BOTH
def test_printed_form_hides_the_token(cls):
    text = repr(on_mindspore(cls, device_target="CPU", hub_token="secret-token"))
    assert "secret-token" not in text
    assert "framework=ms" in text
