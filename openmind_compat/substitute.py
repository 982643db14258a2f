"""Make `transformers.Trainer` and its arguments this package's, for a while."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from types import ModuleType

# Name -> the module of transformers that defines it, from which scripts import it too.
_HOMES = {
    "Seq2SeqTrainer": "transformers.trainer_seq2seq",
    "Seq2SeqTrainingArguments": "transformers.training_args_seq2seq",
    "Trainer": "transformers.trainer",
    "TrainingArguments": "transformers.training_args",
}


@contextlib.contextmanager
def substituted() -> Iterator[None]:
    """Within it, the four names are ours in `transformers` and in the modules that define them.

    A class that was made from an original before, and a module that has already imported one, keep the original.
    """
    import openmind_compat

    # First: ours are subclasses of the originals, and so are made before the originals are out of sight.
    replacements = {name: getattr(openmind_compat, name) for name in _HOMES}
    homes = {name: importlib.import_module(home) for name, home in _HOMES.items()}
    originals = {name: getattr(home, name) for name, home in homes.items()}
    # Last: importing the Trainer makes transformers build its package object anew, and a script gets the newer one.
    package = importlib.import_module("transformers")
    try:
        _set(replacements, homes, package)
        yield
    finally:
        _set(originals, homes, package)


def _set(classes: dict[str, type], homes: dict[str, ModuleType], package: ModuleType) -> None:
    for name, value in classes.items():
        setattr(homes[name], name, value)
        setattr(package, name, value)
