"""Which framework and which device are chosen, and what is said when they cannot be."""

import logging

import pytest

from openmind_compat import framework, log
from openmind_compat.framework import choose_device, choose_framework


@pytest.fixture
def machine(monkeypatch):
    """Pretend what is there: `machine(mindspore=..., ascend=..., accelerator=...)`."""
    monkeypatch.delenv("OPENMIND_FRAMEWORK", raising=False)

    def pretend(mindspore=True, ascend=False, accelerator=None, gpu=False):
        monkeypatch.setattr(framework, "mindspore_installed", lambda: mindspore)
        monkeypatch.setattr(framework, "ascend_devices", lambda: ["/dev/davinci0"] if ascend else [])
        monkeypatch.setattr(framework, "nvidia_devices", lambda: ["/dev/nvidia0"] if gpu else [])
        monkeypatch.setattr(framework, "torch_accelerator", lambda: accelerator)

    pretend()
    return pretend


@pytest.fixture
def warnings_given(monkeypatch):
    monkeypatch.setattr(log, "_already_warned", set())
    lines = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = log.get_logger()
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


@pytest.mark.parametrize(
    ("mindspore", "ascend", "accelerator", "expected", "because"),
    [
        (False, False, None, "pt", "not installed"),
        (False, True, "npu", "pt", "not installed"),
        (False, False, "cuda", "pt", "not installed"),
        (True, False, None, "ms", "no accelerator"),
        (True, True, None, "ms", "/dev/davinci0"),
        (True, True, "npu", "ms", "/dev/davinci0"),
        (True, True, "cuda", "ms", "/dev/davinci0"),
        (True, False, "cuda", "pt", "cuda"),
    ],
)
def test_what_is_there_decides(machine, mindspore, ascend, accelerator, expected, because):
    machine(mindspore, ascend, accelerator)
    choice = choose_framework(None)
    assert choice.name == expected
    assert because in choice.reason


def test_argument_then_environment_then_machine(machine, monkeypatch):
    monkeypatch.setenv("OPENMIND_FRAMEWORK", "pt")
    assert choose_framework("ms").name == "ms"
    assert choose_framework(None).name == "pt"
    assert "OPENMIND_FRAMEWORK" in choose_framework(None).reason
    monkeypatch.setenv("OPENMIND_FRAMEWORK", " ")
    assert choose_framework(None).name == "ms"


@pytest.mark.parametrize("spelling", ["ms", "MS", " Ms "])
def test_case_and_space_do_not_matter(machine, spelling):
    assert choose_framework(spelling).name == "ms"


@pytest.mark.parametrize(
    ("value", "meant"), [("pytorch", "'pt'"), ("torch", "'pt'"), ("MindSpore", "'ms'"), ("tf", "unset"), (3, "unset")]
)
def test_unknown_framework(machine, value, meant):
    with pytest.raises(ValueError) as error:
        choose_framework(value)
    message = str(error.value)
    assert f"framework={value!r}" in message
    assert "'pt' (PyTorch) or 'ms' (MindSpore)" in message
    assert meant in message.split(";")[-1]


def test_unknown_framework_in_the_environment(machine, monkeypatch):
    monkeypatch.setenv("OPENMIND_FRAMEWORK", "pytorch")
    with pytest.raises(ValueError, match="OPENMIND_FRAMEWORK='pytorch'.*'pt'"):
        choose_framework(None)


@pytest.mark.parametrize("through_environment", [False, True])
def test_mindspore_asked_for_and_not_installed(machine, monkeypatch, through_environment):
    machine(mindspore=False)
    if through_environment:
        monkeypatch.setenv("OPENMIND_FRAMEWORK", "ms")
    with pytest.raises(ImportError) as error:
        choose_framework(None if through_environment else "ms")
    assert 'pip install "openmind-compat[mindspore]"' in str(error.value)


def test_default_device(machine, warnings_given):
    machine(ascend=True)
    assert choose_device("Ascend", set_by_user=False) == "Ascend"
    assert warnings_given == []

    machine(ascend=False)
    assert [choose_device("Ascend", set_by_user=False) for _ in range(3)] == ["CPU"] * 3
    (warning,) = warnings_given
    assert "device_target='CPU'" in warning


@pytest.mark.parametrize(
    ("spelling", "target"), [("cpu", "CPU"), ("CPU", "CPU"), (" gpu ", "GPU"), ("ASCEND", "Ascend")]
)
def test_device_that_is_there(machine, warnings_given, spelling, target):
    machine(ascend=True, gpu=True)
    assert choose_device(spelling, set_by_user=True) == target
    assert warnings_given == []


@pytest.mark.parametrize("target", ["Ascend", "GPU"])
def test_device_that_is_absent(machine, target):
    with pytest.raises(ValueError) as error:
        choose_device(target, set_by_user=True)
    assert f"device_target={target!r}" in str(error.value)
    assert "device_target='CPU'" in str(error.value)


@pytest.mark.parametrize(
    ("value", "remedy"), [("npu", "'Ascend'"), ("cuda", "'GPU'"), ("tpu", "unset"), (None, "unset")]
)
def test_unknown_device(machine, value, remedy):
    with pytest.raises(ValueError) as error:
        choose_device(value, set_by_user=True)
    assert f"device_target={value!r}" in str(error.value)
    assert "Ascend, CPU, GPU" in str(error.value)
    assert remedy in str(error.value).split(";")[-1]


def test_detection_on_this_machine_agrees_with_torch():
    import torch

    assert (framework.torch_accelerator() is not None) == torch.accelerator.is_available()
    assert framework.mindspore_installed()
