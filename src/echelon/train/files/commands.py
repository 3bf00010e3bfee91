"""Run a command of the script once, and wait for the files that its pools of workers write."""

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from ..function_types import Function
from ..patches import Hooks
from ..wire.lines import is_called_by_script
from .sharing import Files

_SUBPROCESS = ("run", "call", "check_call", "check_output", "getoutput", "getstatusoutput")
_COMMANDS = (("os", "system"), *(("subprocess", name) for name in _SUBPROCESS))
_ENDS = (
    ("multiprocessing.pool", "Pool.map"),
    ("multiprocessing.pool", "Pool.starmap"),
    ("multiprocessing.pool", "Pool.join"),
    ("multiprocessing.pool", "Pool.terminate"),
    ("concurrent.futures.process", "ProcessPoolExecutor.shutdown"),
    ("concurrent.futures.thread", "ThreadPoolExecutor.shutdown"),
)


def install(files: Files, hooks: Hooks) -> None:
    for module, function in _COMMANDS:
        once = partial(_once, files, function)
        hooks.replace(module, function, once, why="A command that all ranks start runs once.")
    why = "All ranks wait for the files that a pool of workers writes."
    for module, function in _ENDS:
        hooks.replace(module, function, partial(_waiting, files, function), why=why)


def _once(files: Files, name: str, original: Callable[..., object]) -> Function:
    def run(*args: object, **kwargs: object) -> Any:
        if not is_called_by_script(sys._getframe(1)):
            return original(*args, **kwargs)
        return files.act(name, os.getcwd(), lambda: original(*args, **kwargs))

    return run


def _waiting(files: Files, name: str, original: Callable[..., object]) -> Function:
    def end(*args: object, **kwargs: object) -> Any:
        result = original(*args, **kwargs)
        if is_called_by_script(sys._getframe(1)):
            files.meet(name, os.getcwd())
        return result

    return end
