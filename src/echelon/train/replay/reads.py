"""Every way in which Python reads the values of a tensor: the journal keeps them, and gives them again.

torch.load of a file that the run has written itself: later steps may have changed it, so the journal keeps its form.

The form is everything but the numbers of tensors. The numbers go into models and optimizers, which get theirs from the
checkpoint.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from .. import patches
from ..files.sharing import Files, path_of
from ..scaling_error import ScalingError
from .tape import FILE, Journal

_WHY = "What a script reads from tensors is kept with its checkpoints."
_METHODS = (
    "item", "tolist", "__bool__", "__int__", "__float__", "__complex__", "__index__", "__format__", "__repr__",
    "__contains__", "numpy", "__array__", "equal", "allclose", "is_nonzero", "get_device",
)  # fmt: skip
_FUNCTIONS = ("equal", "allclose", "is_nonzero")
_SHAPED = (
    "nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount", "where",
)  # fmt: skip
"""The shapes of their results depend on values."""
_MOST_BYTES = 1 << 20


def install(tape: Journal) -> None:
    for kind in (torch.Tensor, *_sharded_kinds()):
        for name in _METHODS:
            if name in vars(kind) or kind is torch.Tensor:
                patches.replace(kind, name, reading(tape, name, getattr(kind, name)), why=_WHY)
    for name in _FUNCTIONS:
        patches.replace(torch, name, reading(tape, name, getattr(torch, name)), why=_WHY)
    for name in _SHAPED:
        patches.replace(torch, name, _shaping(tape, name, getattr(torch, name)), why=_WHY)
        if hasattr(torch.Tensor, name):
            patches.replace(torch.Tensor, name, _shaping(tape, name, getattr(torch.Tensor, name)), why=_WHY)


def _sharded_kinds() -> list[Any]:
    """Return the class of sharded tensors, whose reads fsdp.py replaces; none where nothing has imported it."""
    module = sys.modules.get("torch.distributed.tensor")
    return [module.DTensor] if module is not None else []


def reading(tape: Journal, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that asks the tape for what it reads."""

    @wraps(original)
    def read(*args: object, **kwargs: object) -> Any:
        value = tape.read(name, lambda: original(*args, **kwargs))
        if tape.is_recording and getattr(value, "nbytes", 0) > _MOST_BYTES:
            _refuse(name, int(value.nbytes))
        return value

    return read


def _shaping(tape: Journal, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def shape(*args: object, **kwargs: object) -> Any:
        if name == "where" and len(args) + len(kwargs) != 1:
            return original(*args, **kwargs)
        return tape.formed(name, lambda: original(*args, **kwargs), name)

    return shape


def _refuse(name: str, num_bytes: int) -> None:
    raise ScalingError(
        f"--checkpoint-every keeps what the script reads from tensors, and {name}() read "
        f"{num_bytes / 1e6:.1f} MB at once",
        "reduce the tensor before it is read; or let the script save itself, and remove --checkpoint-every",
    )


_WHY_LOADS = "What a script loads from its own files is kept with its checkpoints."


def install_loads(tape: Journal, files: Files) -> None:
    """Let torch.load ask the journal for files that the script has written."""
    original = torch.load

    @wraps(original)
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        path = path_of(f)
        is_own = path is not None and files.written is not None and path in files.written.before
        if is_own and tape.is_playing:
            return _played(tape, str(path))
        with tape.paused():
            value = original(f, *args, **kwargs)
        if is_own and tape.is_recording:
            tape.keep(FILE, _entry(tape, value))
        return value

    patches.replace(torch, "load", load, why=_WHY_LOADS)


def _entry(tape: Journal, value: object) -> Any:
    """Return the form of a file's content; a text where it is no plain data, because the loop may never be repeated."""
    try:
        return tape.forms.note(value)
    except ScalingError as error:
        error.withdraw()
        return str(error).partition("\n")[0]


def _played(tape: Journal, path: str) -> Any:
    entry = tape.play(FILE)
    if isinstance(entry, str):
        raise ScalingError(
            f"the script has loaded {path}, which it had written itself, and its content cannot be repeated: {entry}",
            "save and load state_dict(), numbers and text; or start the script without --resume",
        )
    return tape.forms.hollow(entry)
