"""Let loggers and progress bars print on rank 0; on other ranks they accept every call and print nothing."""

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any

from .. import patches
from ..function_types import Function
from ..patches import Hooks
from ..wire.world import alone
from .sharing import Files
from .writers import with_plain

_WHY = "A logger or a progress bar speaks on rank 0 alone."
_WRITER = "SummaryWriter"
_WRITERS = (("torch.utils.tensorboard", "torch.utils.tensorboard.writer"), ("tensorboardX", "tensorboardX.writer"))


def install(files: Files, hooks: Hooks) -> None:
    for names in _WRITERS:
        for name in names:
            hooks.when_imported(name, _hook_writer(files, hooks), why=_WHY, attribute=_WRITER)
    hooks.replace("wandb", "init", partial(_speaking_once, files), why=_WHY)
    if not files.is_closed:
        speak = partial(_hook_methods, files, hooks)
        hooks.when_imported("wandb.sdk.wandb_run", lambda module: speak(module.Run, ("log",)), why=_WHY)
        hooks.when_imported("mlflow", lambda module: speak(module, _spoken(module)), why=_WHY)
    else:
        os.environ["WANDB_MODE"] = "disabled"
        hooks.replace("tqdm.std", "tqdm.__init__", _shown_nowhere, why=_WHY)
        hooks.when_imported("mlflow", lambda mlflow: _track_aside(mlflow, files), why=_WHY)


def fall_silent(files: Files, hooks: Hooks) -> None:
    """In a fork of rank 0, silence the loggers that have not started."""
    os.environ["WANDB_MODE"] = "disabled"
    begin = partial(_track_aside, files=files)
    hooks.when_imported("mlflow", lambda mlflow: begin(mlflow) if mlflow.active_run() is None else None, why=_WHY)


def _nothing(*_args: object, **_kwargs: object) -> None:
    return None


# All ranks have to join the parts of a shared tensor that is logged
_take_call: Callable[..., None] = with_plain(_nothing)


class Silent:
    """A TensorBoard writer on a rank that does not write."""

    _files: Files | None = None

    def __init__(self, log_dir: object = None, *_args: object, **kwargs: object) -> None:
        log_dir = log_dir if log_dir is not None else kwargs.get("logdir")
        self.log_dir = self.logdir = log_dir
        if self._files is not None:
            self.log_dir = self.logdir = self._files.act("SummaryWriter", log_dir or "runs", str, instead=log_dir)

    def get_logdir(self) -> object:
        """Return the folder of rank 0's writer."""
        return self.log_dir

    def add_figure(self, _tag: str, figure: object, *_args: object, close: bool = True, **_kwargs: object) -> None:
        """Close the figure, as the writer does: the script makes a new figure each time."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if close and pyplot is not None:
            for open_figure in figure if isinstance(figure, list) else [figure]:
                pyplot.close(open_figure)

    def __enter__(self) -> "Silent":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _take_call


def _hook_methods(files: Files, hooks: Hooks, owner: object, names: Iterable[str]) -> None:
    """Let methods log numbers that are equal on all ranks, and do nothing in a fork of the rank that logs."""

    def wrap(original: Function) -> Function:
        @with_plain
        def speak(*args: object, **kwargs: object) -> object:
            if files.is_closed:
                return None
            with alone("{}.{}()".format(getattr(owner, "__name__", ""), getattr(original, "__name__", ""))):
                return original(*args, **kwargs)

        return wraps(original)(speak)

    for name in names:
        original = getattr(owner, name)
        hooks.put(owner, name, original, wrap(original), why=_WHY)


def _spoken(mlflow: object) -> list[str]:
    return [name for name in dir(mlflow) if name.startswith(("log_", "set_tag")) and callable(getattr(mlflow, name))]


def _hook_writer(files: Files, hooks: Hooks) -> Callable[[object], None]:
    """Return a hook that makes the folder of events in a meeting of all ranks, as every change of the disk."""

    def act(module: object) -> None:
        writer = getattr(module, _WRITER, None)
        if writer is None or issubclass(writer, Silent) or patches.is_replaced(writer, "__init__"):
            return
        if files.is_closed:
            hooks.put(module, _WRITER, writer, type(_WRITER, (Silent,), {"_files": files}), why=_WHY)
            return
        original = writer.__init__

        def init(self: object, logdir: object = None, *args: object, **kwargs: object) -> None:
            logdir = kwargs.pop("log_dir", logdir)

            def begin() -> str:
                original(self, logdir, *args, **kwargs)
                return str(getattr(self, "log_dir", None) or getattr(self, "logdir", ""))

            files.act("SummaryWriter", logdir or "runs", begin)

        patches.replace(writer, "__init__", init, why=_WHY)
        _hook_methods(files, hooks, writer, [n for n in dir(writer) if n.startswith("add_") or n in ("flush", "close")])

    return act


def _speaking_once(files: Files, original: Function) -> Function:
    """Begin a run of Weights & Biases on rank 0, and a disabled run on other ranks."""

    def init(*args: object, **kwargs: object) -> object:
        if not files.is_closed:
            return files.act("wandb.init", "wandb", lambda: original(*args, **kwargs), tells=lambda _: None)
        files.act("wandb.init", "wandb", lambda: None)
        kwargs["mode"] = "disabled"
        run = original(*args, **kwargs)
        patches.replace(sys.modules["wandb"], "log", _take_call, why=_WHY)
        run.log = _take_call
        return run

    return init


def _shown_nowhere(original: Callable[..., object]) -> object:
    def init(self: object, *args: object, **kwargs: object) -> None:
        if kwargs.get("file") is None:
            kwargs["file"] = _Nowhere()
        original(self, *args, **kwargs)

    return init


class _Nowhere:
    """A stream that discards its text."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        """Do nothing."""


def _track_aside(mlflow: Any, files: Files) -> None:
    """Let MLflow on a rank that logs nothing track into a folder that is removed at the end."""
    folder = tempfile.mkdtemp(prefix="mlflow-")
    files.keep_own(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # MLflow prefers a database, whose setup takes seconds
    uri = "file:" + os.path.join(folder, "mlruns")  # MLflow creates its first experiment there
    mlflow.set_tracking_uri(uri)
    os.environ["MLFLOW_TRACKING_URI"] = uri
    for name in ("set_tracking_uri", "set_registry_uri"):
        patches.replace(mlflow, name, _nothing, why=_WHY)
