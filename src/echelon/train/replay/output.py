"""Let a repeated loop print nothing and log nothing: its lines are in the output of the run that it continues."""

import sys
from functools import wraps
from typing import Any, List

from .. import patches
from ..patches import Hooks
from .tape import OFF, Tape

_WHY = "A repeated loop prints and logs nothing a second time."
_muted: List["_Muted"] = []


class _Muted:
    """A stream that drops what is written while a loop is repeated."""

    def __init__(self, stream: Any, tape: Tape) -> None:
        self._stream = stream
        self._tape = tape

    def write(self, text: Any) -> int:
        """Write, or drop the text."""
        return len(text) if self._tape.is_playing else int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def mute_streams(tape: Tape) -> None:
    """Print nothing while a loop is repeated, except for an error."""
    for name in ("stdout", "stderr"):
        patches.replace(sys, name, _Muted(getattr(sys, name), tape), why=_WHY)
    original = sys.excepthook

    def tell(*error: Any) -> None:
        tape.phase = OFF
        original(*error)

    patches.replace(sys, "excepthook", tell, why="An error in a repeated loop is told.")


def mute_loggers(tape: Tape) -> None:
    """Let TensorBoard, wandb and MLflow log nothing while a loop is repeated, nor add to the journal before."""
    hooks = Hooks()

    def mute(owner: Any, names: Any) -> None:
        _mute(owner, names, tape)

    for module in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
        hooks.when_imported(module, lambda one: mute(one.SummaryWriter, _adds(one.SummaryWriter)), why=_WHY)
    hooks.when_imported("wandb.sdk.wandb_run", lambda one: mute(one.Run, ("log",)), why=_WHY)
    hooks.when_imported(
        "mlflow", lambda one: mute(one, [name for name in dir(one) if name.startswith("log_")]), why=_WHY
    )
    hooks.apply()


def _adds(writer: Any) -> List[str]:
    return [name for name in vars(writer) if name.startswith("add_")]


def _mute(owner: Any, names: Any, tape: Tape) -> None:
    for name in names:
        original = getattr(owner, name, None)
        if callable(original):

            @wraps(original)
            def log(*args: Any, _original: Any = original, **kwargs: Any) -> Any:
                if tape.is_playing:
                    return None
                with tape.left_out():
                    return _original(*args, **kwargs)

            patches.replace(owner, name, log, why=_WHY)
