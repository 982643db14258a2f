"""The package's loggers, and warnings that are given once."""

from __future__ import annotations

import logging

_PACKAGE = "openmind_compat"
_already_warned: set[str] = set()


def get_logger(name: str = _PACKAGE) -> logging.Logger:
    """The logger `name`, which is `openmind_compat` or below it, under transformers' verbosity and handlers.

    `transformers.logging.set_verbosity_info()` and a Trainer's `log_level` decide over transformers' lines; placing our
    loggers below transformers' makes them decide over ours too, in the format that the script chose for both.
    """
    from transformers.utils import logging as transformers_logging

    logging.getLogger(_PACKAGE).parent = transformers_logging.get_logger("transformers")
    return logging.getLogger(name)


def warn_once(message: str) -> None:
    """Log `message` as a warning, unless this process has already done so."""
    if message not in _already_warned:
        _already_warned.add(message)
        get_logger().warning(message)
