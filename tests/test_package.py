"""Importing the package, the names that it hands through, and how quiet MindSpore is kept."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import transformers

import openmind_compat

HANDED_THROUGH = [
    "AutoConfig",
    "AutoModelForSequenceClassification",
    "AutoTokenizer",
    "DataCollatorWithPadding",
    "EarlyStoppingCallback",
    "HfArgumentParser",
    "PreTrainedModel",
    "TrainerCallback",
    "TrainerState",
    "default_data_collator",
    "pipeline",
    "set_seed",
]


@pytest.fixture
def python(tmp_path_factory):
    """`python(code, cwd, NAME=value)` runs `code` in a fresh interpreter in `cwd`.

    A variable given as None is removed from its environment. The code is a file, elsewhere: GRAPH mode reads source.
    """

    def run(code, cwd, **environment):
        script = tmp_path_factory.mktemp("script") / "script.py"
        script.write_text(textwrap.dedent(code), encoding="utf-8")
        return run_script(script, cwd, **environment)

    return run


def run_script(script, cwd, **environment):
    values = {**os.environ, "PYTHONPATH": str(Path(openmind_compat.__file__).parents[1]), **environment}
    return subprocess.run(
        [sys.executable, script],
        cwd=cwd,
        env={name: value for name, value in values.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture
def quiet_python(python):
    """`python`, with nothing in the environment that is a wish about MindSpore's log or files."""
    unset = dict.fromkeys(("GLOG_v", "GLOG_log_dir", "MS_SUBMODULE_LOG_v", "VLOG_v", "MS_OM_PATH", "OPENMIND_VERBOSE"))
    return lambda code, cwd, **environment: python(code, cwd, **{**unset, **environment})


def test_import_loads_nothing_heavy_and_leaves_no_trace(python, tmp_path):
    result = python(
        """
        import sys
        import openmind_compat
        heavy = {"torch", "transformers", "accelerate", "mindspore", "mindformers", "numpy"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
        assert not hasattr(openmind_compat, "__wrapped__")   # what inspect and doctest probe for
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
        """,
        tmp_path,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_arguments_on_mindspore_do_not_load_mindspore(python, tmp_path):
    result = python(
        """
        import sys
        from openmind_compat import TrainingArguments
        arguments = TrainingArguments(framework="ms", device_target="CPU", report_to="none")
        assert "mindspore" not in sys.modules and "mindformers" not in sys.modules
        """,
        tmp_path,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", HANDED_THROUGH)
def test_name_is_transformers_own(name):
    assert getattr(openmind_compat, name) is getattr(transformers, name)


def test_every_public_name_of_transformers_is_there():
    ours = set(dir(openmind_compat))
    assert set(transformers.__all__) <= ours
    assert set(openmind_compat.__all__) <= ours


def test_import_forms():
    from openmind_compat import (
        AutoTokenizer,
        TrainerCallback,
        TrainingArguments,
        set_seed,
    )

    assert (AutoTokenizer, TrainerCallback) == (transformers.AutoTokenizer, transformers.TrainerCallback)
    assert set_seed is transformers.set_seed
    assert TrainingArguments is not transformers.TrainingArguments
    assert issubclass(TrainingArguments, transformers.TrainingArguments)


def test_modules_come_through_and_own_modules_come_first():
    assert openmind_compat.trainer_utils is transformers.trainer_utils
    assert openmind_compat.utils.logging is transformers.utils.logging
    assert openmind_compat.framework.__name__ == "openmind_compat.framework"


def test_version_is_transformers_and_own_version_has_its_place():
    from openmind_compat.version import __version__

    assert openmind_compat.__version__ == transformers.__version__
    assert __version__ != transformers.__version__
    assert __version__[0].isdigit()


def test_unknown_name():
    with pytest.raises(AttributeError, match="openmind_compat.*no_such_thing.*nor has transformers"):
        openmind_compat.no_such_thing  # noqa: B018
    with pytest.raises(ImportError, match="no_such_thing"):
        from openmind_compat import no_such_thing  # noqa: F401


def test_trainers_are_ours_and_transformers_at_once():
    assert openmind_compat.Trainer.__module__ == "openmind_compat.trainer"
    assert issubclass(openmind_compat.Trainer, transformers.Trainer)
    assert issubclass(openmind_compat.Seq2SeqTrainer, transformers.Seq2SeqTrainer)
    assert issubclass(openmind_compat.Seq2SeqTrainer, openmind_compat.Trainer)


def test_step_cell_is_a_mindspore_cell():
    from mindspore import nn

    assert issubclass(openmind_compat.MFTrainOneStepCell, nn.Cell)
    assert openmind_compat.MFTrainOneStepCell is openmind_compat.wrapper.MFTrainOneStepCell


GRAPHS = """
import numpy
from openmind_compat.runtime import set_up

mindspore = set_up(mode=0, device_target="CPU")

class Good(mindspore.nn.Cell):
    def construct(self, x):
        return mindspore.ops.matmul(x, mindspore.ops.ones((4, 3), mindspore.float32)).sum()

class Bad(mindspore.nn.Cell):
    def construct(self, x):
        return mindspore.ops.matmul(x, mindspore.ops.ones((3, 7), mindspore.float32))

x = mindspore.Tensor(numpy.ones((2, 4), numpy.float32))
"""


def test_graph_compiles_quietly(quiet_python, tmp_path):
    result = quiet_python(GRAPHS + "print(Good()(x).asnumpy())", tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "24.0\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0, 1])
def test_failure_says_nothing_but_the_exception(quiet_python, tmp_path, mode):
    scratch, cwd = tmp_path / "scratch", tmp_path / "cwd"
    scratch.mkdir()
    cwd.mkdir()
    code = GRAPHS.replace("mode=0", f"mode={mode}") + (
        "try:\n    Bad()(x).asnumpy()\nexcept Exception as error:\n    print(type(error).__name__, error)\n"
    )
    result = quiet_python(code, cwd, TMPDIR=str(scratch))
    assert result.returncode == 0
    assert "got 4 and 3" in result.stdout
    assert result.stderr == ""
    assert list(cwd.iterdir()) == []
    assert list(scratch.iterdir()) == [], "what MindSpore wrote is removed at the end"


def test_verbose_keeps_the_log_and_the_file(quiet_python, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    result = quiet_python(GRAPHS + "Bad()(x)", tmp_path, TMPDIR=str(scratch), OPENMIND_VERBOSE="1")
    assert "[ERROR] ANALYZER" in result.stderr
    (kept,) = scratch.glob("openmind_compat-*/**/analyze_fail.ir")
    assert str(kept) in result.stderr


def test_log_level_of_the_user_is_kept(quiet_python, tmp_path):
    code = """
        import os
        from openmind_compat.runtime import load_mindspore
        load_mindspore()
        print(os.environ["GLOG_v"], "MS_SUBMODULE_LOG_v" in os.environ)
    """
    assert quiet_python(code, tmp_path, GLOG_v="2").stdout == "2 False\n"
    assert quiet_python(code, tmp_path).stdout == "3 True\n"


def test_set_up_switches_mode_and_refuses_a_second_device(quiet_python, tmp_path):
    result = quiet_python(
        """
        from openmind_compat.runtime import set_up
        for mode in (0, 1, 1, 0):
            mindspore = set_up(mode, "CPU", deterministic=True)
            assert mindspore.get_context("mode") == mode
        assert mindspore.get_current_device().device_target == "CPU"
        assert mindspore.get_context("deterministic") == "ON"
        try:
            set_up(0, "Ascend")
        except RuntimeError as error:
            print(error)
        """,
        tmp_path,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "device_target='Ascend' cannot be used" in result.stdout


def test_set_up_after_the_script_has_used_the_device(quiet_python, tmp_path):
    result = quiet_python(
        """
        from openmind_compat.runtime import load_mindspore, set_up
        mindspore = load_mindspore()
        print((mindspore.Tensor([1.0]) + 1).asnumpy())
        set_up(0, "CPU")
        """,
        tmp_path,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "[2.]\n", "")


def test_load_mindspore_without_it(monkeypatch):
    from openmind_compat.runtime import load_mindspore

    monkeypatch.setitem(sys.modules, "mindspore", None)
    with pytest.raises(ImportError, match=r'pip install "openmind-compat\[mindspore\]"'):
        load_mindspore()
