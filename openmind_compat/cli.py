"""The command line, `openmind-compat` or `python -m openmind_compat`."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from typing import Optional

USAGE = """\
usage: openmind-compat run SCRIPT [ARGS ...]
       openmind-compat run -m MODULE [ARGS ...]
       openmind-compat demo [OPTIONS ...]
       openmind-compat --version

run   runs a Hugging Face script whose source is not changed: in it, Trainer,
      TrainingArguments, Seq2SeqTrainer and Seq2SeqTrainingArguments of
      transformers are those of openmind_compat.
      OPENMIND_FRAMEWORK=pt or ms says who computes.
demo  trains a small model on real data that needs no download
      (openmind-compat demo --help).
"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one command and return its exit code. What a script raises, SystemExit included, passes through."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if command == "run":
        return _run(rest)
    if command == "demo":
        from openmind_compat.demo import main as demo

        return demo(rest)
    if command in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if command in ("-V", "--version"):
        from openmind_compat.version import __version__

        print(f"openmind-compat {__version__}")
        return 0
    return _usage_error(f"no such command: {command}" if command else "a command is needed")


def _usage_error(message: str) -> int:
    print(f"{USAGE}\nopenmind-compat: error: {message}", file=sys.stderr)
    return 2


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["-m"]:
        if len(arguments) < 2:
            return _usage_error("run -m needs the name of a module")
        module, arguments = arguments[1], arguments[2:]
        # runpy puts the module's file in place of the "-m", as Python does.
        with _command_line(["-m", *arguments], os.getcwd()), _substituted():
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        return 0

    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    if not arguments:
        return _usage_error("run needs a script")
    script = arguments[0]
    if script.startswith("-"):
        return _usage_error(f"run has no option {script}; options of the script come after the script")
    if not os.path.exists(script):
        print(f"openmind-compat: error: cannot open {script!r}: no such file", file=sys.stderr)
        return 2
    with _command_line(arguments, os.path.dirname(os.path.realpath(script))), _substituted():
        runpy.run_path(script, run_name="__main__")
    return 0


def _substituted() -> contextlib.AbstractContextManager[None]:
    # Loads torch and transformers, which the other commands do not need.
    from openmind_compat.substitute import substituted

    return substituted()


@contextlib.contextmanager
def _command_line(arguments: list[str], import_directory: str) -> Iterator[None]:
    """What the interpreter would have set for a script: `sys.argv`, and the first place to import from."""
    argv, path = sys.argv, sys.path
    sys.argv = list(arguments)
    # The first entry is this program's own such directory, unless Python was told to have none (python -P).
    sys.path = list(path) if getattr(sys.flags, "safe_path", False) else [import_directory, *path[1:]]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path
