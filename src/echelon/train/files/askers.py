"""Find who accesses the disk: the script, which does it on all ranks alike, or code that may run on a single rank."""

import gc
import sys
import threading
from functools import partial
from typing import Any

from ...checkpoint import store
from ...pytorch import modules as torch_modules
from .. import patches, profiling
from ..recording import record
from ..wire import oracle

SCRIPT, ITSELF, ANYBODY = "the script", "itself", "anybody"

# These libraries bring their own locks, or are active on one rank alone, or make names that no other process shares
_ALONE = frozenset((
    "aim", "clearml", "comet_ml", "datasets", "filelock", "git", "huggingface_hub", "kagglehub", "mlflow", "neptune",
    "numba", "swanlab", "tensorboard", "tensorboardX", "trackio", "triton", "wandb",
))  # fmt: skip
_ALONE_PARTS = (
    *torch_modules.COMPILER_PARTS, "torch.utils.tensorboard", "torch.utils.cpp_extension", "tempfile"
)  # fmt: skip
_OURS = (record.__name__, oracle.__name__, profiling.__name__)
_CHECKPOINTS = store.__name__.rpartition(".")[0]
_LIKELY_ON_ALL = (OSError, ImportError, LookupError, EOFError)


def who() -> str:
    """Say who accesses the disk, from the functions that are running now."""
    is_anybody = threading.current_thread() is not threading.main_thread() or bool(_collecting) or _is_failing()
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith((*_ALONE_PARTS, _CHECKPOINTS)) or name in _OURS:
            return ITSELF
        if name.partition(".")[0] in _ALONE and "-packages" in str(frame.f_globals.get("__file__", "")):
            return ITSELF
        if name == "logging" and frame.f_code.co_name == "handle":
            is_anybody = True  # a warning may concern the samples of one rank
        frame = frame.f_back
    return ANYBODY if is_anybody else SCRIPT


_collecting: list[str] = []  # is not empty while the garbage collector runs, which may be at any time


def watch_collector() -> None:
    """Notice when destructors run because of the garbage collector."""

    def note(phase: str, _: object) -> None:
        if phase == "start":
            _collecting.append(phase)
        else:
            _collecting.clear()

    why = "A destructor that the garbage collector calls may run on one rank alone."
    remove = partial(gc.callbacks.remove, note)
    patches.hook(gc.callbacks.append, note, why=why, name="gc.callbacks", remove=remove)


def _is_failing() -> bool:
    """Say whether the code handles an error that may exist on this rank alone."""
    error = sys.exc_info()[1]
    return error is not None and not isinstance(error, _LIKELY_ON_ALL)
