"""Install the hooks through which what a script does to files is shared."""

import sys
from functools import partial
from typing import Any

from .. import patches
from ..world import World
from . import askers, commands, downloads, folders, loggers, opening, stores, writers
from .meeting import Meeting
from .sharing import Files

_HOOKERS = (opening, folders, writers, stores, downloads, commands, loggers)


def prepare() -> None:
    """Do before a fork what takes each rank its time in install()."""
    patches.look_through()


def install(files: Files, processes: World) -> None:
    """Hook what writes, renames, removes, makes, downloads and logs."""
    if processes.size == 1:
        return
    files.meeting = Meeting(processes)
    askers.watch_collector()
    _watch_end(files)
    _watch_fetches(files)
    hooks = patches.Hooks()
    files.silence_loggers = partial(loggers.fall_silent, files, hooks)
    for module in _HOOKERS:
        module.install(files, hooks)
    hooks.apply()


def _watch_end(files: Files) -> None:
    """Meet nobody any more when the script has ended or failed: the others may be elsewhere."""
    import atexit

    original = sys.excepthook

    def leave() -> None:
        files.is_leaving = True

    def excepthook(*args: Any) -> None:
        leave()
        original(*args)

    why = "A rank whose script has failed waits for no other rank."
    patches.replace(sys, "excepthook", excepthook, why=why)
    atexit.register(leave)


def _watch_fetches(files: Files) -> None:
    """Notice when samples are fetched in this process."""
    from torch.utils.data._utils import fetch

    original: Any = fetch._MapDatasetFetcher.fetch

    def fetched(self: Any, *args: Any, **kwargs: Any) -> Any:
        files.num_fetches += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            files.num_fetches -= 1

    why = "What a dataset writes while samples are fetched is this rank's own."
    patches.replace(fetch._MapDatasetFetcher, "fetch", fetched, why=why)
