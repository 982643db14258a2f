"""Hugging Face training scripts on MindSpore, by changing one import.

    from openmind_compat import AutoTokenizer, Trainer, TrainingArguments

A few names are this package's own; every other name is `transformers`' own object, so that a whole
`from transformers import (...)` can be replaced, or the package imported as `transformers`. Nothing is loaded before a
name is used: importing the package loads neither torch, transformers, mindspore nor mindformers.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # For type checkers: every public name of transformers, then ours over it.
    from transformers import *  # noqa: F403

    from openmind_compat.arguments import Seq2SeqTrainingArguments, TrainingArguments
    from openmind_compat.trainer import Seq2SeqTrainer, Trainer
    from openmind_compat.wrapper import MFTrainOneStepCell

# Own name -> the module that defines it.
_OWN_NAMES = {
    "MFTrainOneStepCell": "openmind_compat.wrapper",
    "Seq2SeqTrainer": "openmind_compat.trainer",
    "Seq2SeqTrainingArguments": "openmind_compat.arguments",
    "Trainer": "openmind_compat.trainer",
    "TrainingArguments": "openmind_compat.arguments",
}

__all__ = [
    "MFTrainOneStepCell",
    "Seq2SeqTrainer",
    "Seq2SeqTrainingArguments",
    "Trainer",
    "TrainingArguments",
]


@functools.cache
def _own_modules() -> frozenset[str]:
    here = os.path.dirname(__file__)
    return frozenset(module.name for module in pkgutil.iter_modules([here]) if not module.name.startswith("_"))


def __getattr__(name: str) -> Any:
    if name in _OWN_NAMES:
        return getattr(importlib.import_module(_OWN_NAMES[name]), name)
    # Python and its tools probe modules for special names; that must not load transformers. `__version__` is the
    # exception: scripts do `import openmind_compat as transformers` and compare `transformers.__version__`, so it is
    # transformers' version. Ours is `openmind_compat.version.__version__`.
    special = name.startswith("__") and name.endswith("__")
    if not special and name in _own_modules():
        # Before transformers, so that `openmind_compat.trainer` is the same module before and after it was imported.
        return importlib.import_module(f"{__name__}.{name}")
    if special and name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    import transformers

    try:
        return getattr(transformers, name)
    except AttributeError:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}, nor has transformers {transformers.__version__}, "
            "where every name comes from that is not defined here",
            name=name,
        ) from None


def __dir__() -> list[str]:
    import transformers

    return sorted({*globals(), *_OWN_NAMES, *_own_modules(), *dir(transformers)})
