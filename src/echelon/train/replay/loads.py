"""torch.load of a file that the run has written itself: later steps may have changed it, so the journal keeps its form.

The form is everything but the numbers of tensors. The numbers go into models and optimizers, which get theirs from the
checkpoint.
"""

from functools import wraps
from typing import Any

import torch

from .. import patches
from ..files.sharing import Files, path_of
from ..scaling_error import ScalingError
from .tape import FILE, Tape

_WHY = "What a script loads from its own files is kept with its checkpoints."


def install(tape: Tape, files: Files) -> None:
    """Let torch.load ask the journal for files that the script has written."""
    original = torch.load

    @wraps(original)
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        path = path_of(f)
        is_own = path is not None and files.written is not None and path in files.written.before
        if is_own and tape.is_playing:
            return _played(tape, str(path))
        with tape.left_out():
            value = original(f, *args, **kwargs)
        if is_own and tape.is_recording:
            tape.keep(FILE, _entry(tape, value))
        return value

    patches.replace(torch, "load", load, why=_WHY)


def _entry(tape: Tape, value: Any) -> Any:
    """Return the form of a file's content; a text where it is no plain data, because the loop may never be repeated."""
    try:
        return tape.forms.note(value)
    except ScalingError as error:
        error.withdraw()
        return str(error).partition("\n")[0]


def _played(tape: Tape, path: str) -> Any:
    entry = tape.play(FILE)
    if isinstance(entry, str):
        raise ScalingError(
            "the script has loaded %s, which it had written itself, and its content cannot be repeated: %s"
            % (path, entry),
            "save and load state_dict(), numbers and text; or start the script without --resume",
        )
    return tape.forms.hollow(entry)
