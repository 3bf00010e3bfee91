"""Install the hooks that share a script's access to files among the ranks."""

import sys
from functools import partial
from typing import Any

from ...pytorch import internals
from .. import patches
from ..wire.world import World
from . import askers, commands, folders, loggers, opening, stores, writers
from .meeting import Meeting
from .sharing import Files
from .written_paths import WrittenPaths

_HOOKERS = (
    opening.install, folders.install, writers.install, stores.install, folders.install_downloads, commands.install,
    loggers.install,
)  # fmt: skip


def prepare() -> None:
    """Prepare, before the fork of the ranks, the slow part of install()."""
    patches.look_through()


def install(files: Files, processes: World, *, is_saved: bool = False) -> None:
    """Hook all functions that write, rename, remove, make, download or log; one rank needs this if it is saved."""
    if processes.size == 1 and not is_saved:
        return
    if processes.size > 1:
        files.meeting = Meeting(processes)
    if is_saved:
        files.written = WrittenPaths()
    askers.watch_collector()
    _watch_end(files)
    _watch_fetches(files)
    hooks = patches.Hooks()
    files.silence_loggers = partial(loggers.fall_silent, files, hooks)
    for install_hooks in _HOOKERS:
        install_hooks(files, hooks)
    hooks.apply()


def _watch_end(files: Files) -> None:
    """Stop all meetings when the script has ended or failed, because the other ranks may be elsewhere."""
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
    fetcher = internals.dataset_fetcher()
    original = fetcher.fetch

    def fetched(self: object, *args: object, **kwargs: object) -> object:
        files.num_fetches += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            files.num_fetches -= 1

    why = "What a dataset writes while samples are fetched is this rank's own."
    patches.replace(fetcher, "fetch", fetched, why=why)
