"""The command line: what a script sees when it is run by `openmind-compat run`."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from transformers.trainer import Trainer as TheirTrainer

import openmind_compat
from openmind_compat import cli
from openmind_compat.substitute import substituted

NAMES = {
    "Seq2SeqTrainer": "transformers.trainer_seq2seq",
    "Seq2SeqTrainingArguments": "transformers.training_args_seq2seq",
    "Trainer": "transformers.trainer",
    "TrainingArguments": "transformers.training_args",
}


@pytest.fixture
def script(tmp_path):
    def write(text, name="script.py"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def run(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "openmind_compat", *map(str, arguments)],
        cwd=cwd,
        env={"PATH": "", "HOME": str(cwd), "PYTHONPATH": str(Path(openmind_compat.__file__).parents[1])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_script_sees_itself_as_python_would_run_it(tmp_path, script):
    script("value = 7\n", "beside_the_script.py")
    path = script(
        "import os, sys, __main__\n"
        "import beside_the_script\n"
        "print(__name__, sys.argv, beside_the_script.value)\n"
        "print(sys.path[0] == os.path.dirname(os.path.realpath(__file__)), __main__.__file__ == __file__)\n"
        "sys.exit(3)\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    result = run("run", path, "--flag", "-m", "value", cwd=elsewhere)
    assert result.returncode == 3
    assert result.stdout == f"__main__ {[str(path), '--flag', '-m', 'value']} 7\nTrue True\n"


def test_unchanged_script_gets_our_arguments_and_can_save_them(tmp_path, script):
    path = script(
        "import torch, transformers\n"
        "from transformers import HfArgumentParser, TrainingArguments\n"
        "from transformers.training_args import TrainingArguments as from_its_home\n"
        "(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
        "assert from_its_home is TrainingArguments is transformers.TrainingArguments\n"
        "torch.save(arguments, 'arguments.bin')\n"
        "again = torch.load('arguments.bin', weights_only=False)\n"
        "print(type(again).__module__, again.framework, again.output_dir)\n"
    )
    result = run("run", path, "--framework", "ms", "--use_cpu", "--output_dir", "out", cwd=tmp_path)
    assert result.stderr == ""
    assert result.stdout == "openmind_compat.arguments.training_args ms out\n"
    assert result.returncode == 0


def test_subclass_in_a_script_is_pickled(tmp_path, script):
    path = script(
        "import pickle\n"
        "from dataclasses import dataclass\n"
        "from transformers import TrainingArguments\n"
        "@dataclass\n"
        "class Mine(TrainingArguments):\n"
        "    extra: int = 1\n"
        "again = pickle.loads(pickle.dumps(Mine('out', extra=2, use_cpu=True)))\n"
        "print(again.extra, again.framework)\n"
    )
    result = run("run", path, cwd=tmp_path)
    assert (result.stdout, result.stderr) == ("2 ms\n", "")


def test_module_form(tmp_path, script):
    script("import sys\nfrom transformers import TrainingArguments as T\nprint(sys.argv, T.__module__)\n", "job.py")
    result = run("run", "-m", "job", "a", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{[str(tmp_path / 'job.py'), 'a']} openmind_compat.arguments.training_args\n"


def test_exception_passes_through(script):
    argv, path = sys.argv, sys.path
    with pytest.raises(ZeroDivisionError):
        cli.main(["run", str(script("1 / 0\n"))])
    assert sys.argv is argv and sys.path is path
    assert importlib.import_module("transformers").Trainer is TheirTrainer


@pytest.mark.parametrize("name", NAMES)
def test_substitution(name):
    # Not this module's `transformers`: importing its Trainer has put another package object into sys.modules.
    home, package = importlib.import_module(NAMES[name]), importlib.import_module("transformers")
    original = getattr(package, name)
    with substituted():
        assert getattr(package, name) is getattr(home, name) is getattr(openmind_compat, name)
        assert issubclass(getattr(package, name), original)
        assert getattr(package, name) is not original
    assert getattr(package, name) is getattr(home, name) is original


def test_substitution_ends_with_an_error():
    with pytest.raises(KeyError), substituted():
        raise KeyError
    assert importlib.import_module("transformers").Trainer is TheirTrainer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "a command is needed"),
        (["train"], "no such command: train"),
        (["run"], "run needs a script"),
        (["run", "-m"], "needs the name of a module"),
        (["run", "--fast", "x.py"], "run has no option --fast"),
        (["run", "no_such_script.py"], "no such file"),
    ],
)
def test_wrong_use(arguments, message, capsys):
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""


def test_help_and_version(capsys):
    from openmind_compat.version import __version__

    assert cli.main(["--help"]) == 0
    assert "openmind-compat run SCRIPT" in capsys.readouterr().out
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"openmind-compat {__version__}\n"


def test_demo_is_handed_its_options(monkeypatch):
    import openmind_compat.demo

    seen = []
    monkeypatch.setattr(openmind_compat.demo, "main", lambda argv: seen.append(argv) or 5)
    assert cli.main(["demo", "--compare", "--steps", "3"]) == 5
    assert seen == [["--compare", "--steps", "3"]]
