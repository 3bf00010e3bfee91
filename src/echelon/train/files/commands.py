"""Run a command of the script once, and wait for the files that its pools of workers write."""

import os
import sys
from collections.abc import Callable
from typing import Any

from ..function_types import Function, Wrap
from ..patches import Hooks
from ..wire.lines import is_called_by_script
from .sharing import Files

_COMMANDS = (
    ("os", "system"),
    ("subprocess", "run"),
    ("subprocess", "call"),
    ("subprocess", "check_call"),
    ("subprocess", "check_output"),
    ("subprocess", "getoutput"),
    ("subprocess", "getstatusoutput"),
)
_ENDS = (
    ("multiprocessing.pool", "Pool.map"),
    ("multiprocessing.pool", "Pool.starmap"),
    ("multiprocessing.pool", "Pool.join"),
    ("multiprocessing.pool", "Pool.terminate"),
    ("concurrent.futures.process", "ProcessPoolExecutor.shutdown"),
    ("concurrent.futures.thread", "ThreadPoolExecutor.shutdown"),
)


def install(files: Files, hooks: Hooks) -> None:
    """Hook commands and pools, now or when their modules are imported."""
    for module, function in _COMMANDS:
        hooks.replace(module, function, _once(files, function), why="A command that all ranks start runs once.")
    for module, function in _ENDS:
        hooks.replace(
            module,
            function,
            _waiting(files, function),
            why="All ranks wait for the files that a pool of workers writes.",
        )


def _once(files: Files, name: str) -> Wrap:
    def wrap(original: Callable[..., object]) -> Function:
        def run(*args: object, **kwargs: object) -> Any:
            if not is_called_by_script(sys._getframe(1)):
                return original(*args, **kwargs)
            return files.act(name, os.getcwd(), lambda: original(*args, **kwargs))

        return run

    return wrap


def _waiting(files: Files, name: str) -> Wrap:
    def wrap(original: Callable[..., object]) -> Function:
        def end(*args: object, **kwargs: object) -> Any:
            result = original(*args, **kwargs)
            if is_called_by_script(sys._getframe(1)):
                files.meet(name, os.getcwd())
            return result

        return end

    return wrap
