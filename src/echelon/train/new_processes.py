"""Give the zip to processes that multiprocessing starts anew (spawn, forkserver): they begin as ranks do."""

import os
from collections.abc import Callable, Mapping

from . import patches

OF_RANK = "ECHELON_CHILD_OF"
"""The variable in a new process that holds the process id of the rank that guards it."""


def give(archive: str, variables: Callable[[], Mapping[str, "str | None"] | None], *, why: str) -> None:
    """Put the zip on the path of new processes, with variables that `variables()` sets; if it returns None, do not."""
    hooks = patches.Hooks()

    def with_zip(original: Callable[..., object]) -> object:
        def launch(*args: object, **kwargs: object) -> object:
            own = variables()
            if own is None:
                return original(*args, **kwargs)
            theirs = os.environ.get("PYTHONPATH")
            path = archive if theirs is None else archive + os.pathsep + theirs
            changed = {"PYTHONPATH": path, "ECHELON_PYTHONPATH": theirs, **own}
            before = {name: os.environ.get(name) for name in changed}
            _set(changed)
            try:
                return original(*args, **kwargs)
            finally:
                _set(before)

        return launch

    hooks.replace("multiprocessing.popen_spawn_posix", "Popen._launch", with_zip, why=why)
    hooks.replace("multiprocessing.forkserver", "ForkServer.ensure_running", with_zip, why=why)
    hooks.apply()


def _set(variables: Mapping[str, "str | None"]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
