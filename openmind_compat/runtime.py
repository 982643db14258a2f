"""MindSpore's start: imported once, quietly, and told its mode and device."""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import shutil
import sys
import tempfile
from types import ModuleType

from openmind_compat.framework import INSTALL_MINDSPORE

GRAPH, PYNATIVE = 0, 1

# Any of these means that the user has a wish about MindSpore's log, which is then left alone.
_LOG_VARIABLES = ("GLOG_v", "GLOG_stderrthreshold", "GLOG_log_dir", "MS_SUBMODULE_LOG_v", "VLOG_v")


def verbose() -> bool:
    """Whether the user asked, by OPENMIND_VERBOSE, for MindSpore's own log lines and files."""
    return os.environ.get("OPENMIND_VERBOSE", "").strip().lower() not in ("", "0", "false", "no")


def load_mindspore() -> ModuleType:
    """Import MindSpore without its start-up lines and without what it writes into the current directory.

    It prints errors only, and a graph that fails to compile writes its `analyze_fail.ir` into a private directory that
    is removed at the end, unless OPENMIND_VERBOSE=1. Raises ImportError with the command to run where MindSpore is not
    installed.
    """
    if "mindspore" not in sys.modules:
        # MindSpore reads these when it is loaded, so later is too late.
        if not verbose():
            _quieten()
        _redirect_files()
    try:
        return importlib.import_module("mindspore")
    except ModuleNotFoundError as error:
        if error.name != "mindspore":
            raise
        raise ImportError(f"MindSpore is not installed. Install it with\n    {INSTALL_MINDSPORE}") from error


def _quieten() -> None:
    if any(name in os.environ for name in _LOG_VARIABLES):
        return
    os.environ["GLOG_v"] = "3"  # errors
    # The analyzer logs as an error, in full, what it then raises as the exception.
    os.environ["MS_SUBMODULE_LOG_v"] = "{ANALYZER:4}"


def _redirect_files() -> None:
    # Of the variables and context settings that name a path, this one moves analyze_fail.ir. The others do not.
    os.environ.setdefault("MS_OM_PATH", private_directory())


@functools.cache
def private_directory() -> str:
    """A directory that only this user can read, for what MindSpore writes and reads; removed at the end."""
    directory = tempfile.mkdtemp(prefix="openmind_compat-")
    if not verbose():
        atexit.register(_remove, directory, os.getpid())
    return directory


def _remove(directory: str, owner: int) -> None:
    # A forked child that ends in the ordinary way gets here as well; the directory is its parent's.
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)


def set_up(mode: int, device_target: str, deterministic: bool = False) -> ModuleType:
    """Put MindSpore into `mode` (0 GRAPH, 1 PYNATIVE) on `device_target` ("Ascend", "CPU", "GPU"), and return it.

    A process has one device: asking for another one after MindSpore has started is a RuntimeError. The mode may change.
    `deterministic` turns on operators whose result does not change from run to run; it cannot be turned off again.
    """
    mindspore = load_mindspore()
    _set_device(mindspore, device_target)
    if mindspore.get_context("mode") != mode:
        mindspore.set_context(mode=mode)
    if mode == PYNATIVE and device_target == "CPU":
        # Handing each operator to another thread costs ten times what a small operator takes; on a CPU there is
        # nothing to gain by it. GRAPH mode is as fast with this as without (both measured).
        mindspore.runtime.launch_blocking()
    if deterministic and mindspore.get_context("deterministic") != "ON":
        mindspore.set_deterministic(True)
    return mindspore


def _set_device(mindspore: ModuleType, device_target: str) -> None:
    current = mindspore.get_current_device()
    if current.device_target == device_target:
        device_id = current.device_id  # one that the script may have chosen itself
    else:
        device_id = None
    try:
        mindspore.set_device(device_target, device_id)
    except RuntimeError as error:
        if current.device_target == device_target:
            return  # the script has used it already: nothing is left to set
        raise RuntimeError(
            f"device_target={device_target!r} cannot be used: MindSpore refuses it in this process, where its device "
            f"is {current.device_target!r}. One process uses one device, the first that it used; and MindSpore must be "
            f"able to load its libraries for {device_target}. MindSpore says: {error}"
        ) from error
