"""Let a fault happen: this rank, its agent or its node is killed or frozen, a disk is full, a checkpoint is torn.

Keep a rehearsed script from writing outside of its scratch copy: the user's own files stay as they are.

Python reports each file that it opens for writing, renames or removes. Of C code, the functions are checked that are
known to write a file by its path; the launcher looks at the files that it has linked after each run.
"""

import errno
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

from ...checkpoint import store, written
from ...checkpoint.errors import writing
from ...node import processes
from ...orders.rehearsal import DROP_NODE, ERROR, FILL_DISK, FREEZE_RANK, KILL_AGENT, KILL_RANK, SIGNAL, TEAR_CHECKPOINT
from .. import patches
from ..files import writers
from ..scaling_error import as_of_library

_AGENT = b"\0agent\0"
"""A word of the command line of every agent."""
_SAVE_SECONDS = 20.0


def strike(kind: str, checkpoints: str) -> None:
    """Let the fault happen here and now; `checkpoints` is the folder of the run's checkpoints."""
    _STRIKES[kind](checkpoints)


def concerns_all(kind: str) -> bool:
    """Say whether a fault meets all ranks: the disk is full for each of them."""
    return kind == FILL_DISK


def agent() -> int:
    """Return the process of the agent that started this rank; raise RuntimeError if there is none above it."""
    above = processes.read(os.getppid())
    while above is not None and above.pid > 1:
        with open(f"/proc/{above.pid}/cmdline", "rb") as file:
            if _AGENT in file.read():
                return above.pid
        above = processes.read(above.parent)
    raise RuntimeError("the process of the agent cannot be found from this rank")


def _kill_rank(_: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _drop_node(_: str) -> None:
    """Freeze all processes of this node at once: a lost node says no word, and closes no connection."""
    top, here = agent(), os.getpid()
    others: list[int] = [process.pid for process in processes.descendants([top])[top] if process.pid != here]
    for pid in (top, *others, here):
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            pass


def _fill_disk(checkpoints: str) -> None:
    original = written.HashedFile.write

    def write(file: written.HashedFile, content: object) -> None:
        if not file.path.startswith(os.path.join(os.path.abspath(checkpoints), "")):
            return original(file, content)
        with writing(file.path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patches.replace(written.HashedFile, "write", write, why="A rehearsal fills the disk of checkpoints.")


def _tear_checkpoint(checkpoints: str) -> None:
    """Cut the largest file of the newest checkpoint to its half, as a lost write does; then kill this rank."""
    deadline = time.monotonic() + _SAVE_SECONDS
    while any(".partial-" in name for name in os.listdir(checkpoints)) and time.monotonic() < deadline:
        time.sleep(0.01)  # else a newer one may be published just after
    checkpoint, _ = store.CheckpointStore(checkpoints).latest()
    if checkpoint is not None:
        names = [os.path.join(checkpoint.path, name) for name in os.listdir(checkpoint.path)]
        largest = max(names, key=os.path.getsize)
        os.truncate(largest, os.path.getsize(largest) // 2)
    _kill_rank(checkpoints)


def _raise(_: str) -> None:
    raise as_of_library(RuntimeError("an error that was ordered by a rehearsal"))


_STRIKES: dict[str, Callable[[str], None]] = {
    KILL_RANK: _kill_rank,
    FREEZE_RANK: lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    KILL_AGENT: lambda _: os.kill(agent(), signal.SIGKILL),
    DROP_NODE: _drop_node,
    FILL_DISK: _fill_disk,
    TEAR_CHECKPOINT: _tear_checkpoint,
    SIGNAL: lambda _: os.kill(agent(), signal.SIGUSR1),
    ERROR: _raise,
}


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
_TARGETS = {
    "os.rename": (0, 1), "os.remove": (0,), "os.rmdir": (0,), "os.mkdir": (0,),
    "os.link": (1,), "os.symlink": (1,), "shutil.rmtree": (0,), "shutil.copyfile": (1,), "shutil.move": (0, 1),
}  # fmt: skip
"""Of an event: which of its arguments are paths that it changes."""
_FOLLOWED = {"os.truncate": 0, "os.chmod": 0, "sqlite3.connect": 0}
"""Of an event that changes what a link leads to: the argument with the path."""
_CACHES = (
    "XDG_CACHE_HOME", "HF_HOME", "HF_DATASETS_CACHE", "HF_HUB_CACHE", "TORCH_HOME", "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "NUMBA_CACHE_DIR", "MPLCONFIGDIR", "CUDA_CACHE_PATH",
    "MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR",
)  # fmt: skip
"""Variables that name folders of caches."""


_WHY = "A rehearsal changes no file outside of its copy."


class OutsideError(RuntimeError):
    """A rehearsed script would write outside of its scratch copy."""


def install(scratch: str, original: str) -> None:
    """Refuse, from now on, what would change a file outside of `scratch`, of temporary folders and of caches.

    `original` is the user's folder. Nothing else in it may change, also if it is a temporary folder.
    """
    patches.replace(sys, "dont_write_bytecode", True, why=_WHY)  # beside a module of the user
    guard = _Guard(scratch, original)
    sys.addaudithook(guard.hear)
    hooks = patches.Hooks()
    for module, function, place, key in writers.FUNCTIONS:
        hooks.replace(module, function, partial(guard.checking, place, key), why=_WHY)
    hooks.apply()


class _Guard:
    def __init__(self, scratch: str, original: str) -> None:
        caches = [os.environ[name] for name in _CACHES if os.environ.get(name)]
        temporary = (tempfile.gettempdir(), "/tmp", "/dev", "/proc", *caches)
        self._scratch = os.path.realpath(scratch) + os.sep
        self._original = os.path.realpath(original) + os.sep
        self._others = tuple(os.path.realpath(path) + os.sep for path in temporary)
        self._caches = os.path.expanduser("~") + os.sep + "."

    def hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITES:
                self._check(path, follows=True)
        elif event in _FOLLOWED:
            self._check(arguments[_FOLLOWED[event]], follows=True)
        elif event in _TARGETS:
            for place in _TARGETS[event]:
                self._check(arguments[place], follows=False)

    def checking(self, place: int, key: str, original: Callable[..., object]) -> object:
        """Return a function of a library that checks the path, its argument at `place` or named `key`."""

        def checked(*args: object, **kwargs: object) -> object:
            self._check(kwargs.get(key, args[place] if len(args) > place else None), follows=True)
            return original(*args, **kwargs)

        return checked

    def _check(self, path: object, *, follows: bool) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return  # a file that is open already
        text = os.path.abspath(os.fsdecode(path))
        real = os.path.join(os.path.realpath(os.path.dirname(text)), os.path.basename(text))
        if follows:
            real = os.path.realpath(real)
        if real.startswith(self._scratch) or real + os.sep == self._scratch:
            return
        # with a separator: a nameless temporary file opens the folder itself
        is_temporary = (real + os.sep).startswith((*self._others, self._caches))
        is_temporary = is_temporary and not (real + os.sep).startswith(self._original)
        if not is_temporary:
            folder = os.path.dirname(real)
            raise OutsideError(f"the script would write into {folder}, which is outside of the copy of its folder")
