"""Start before an unchanged script: hook PyTorch, or print one line with the reason against it."""

import os
import sys
from typing import NoReturn

from ..errors import UsageError
from ..orders import bench, checkpoint, records, rehearsal
from ..orders.scale import DTENSOR, OBSERVE, ScaleOptions
from ..pytorch import targets


def prepare(scale: str) -> None:
    """Import in the warm process the modules that every rank would import, if the script imports PyTorch."""
    if "torch" not in sys.modules:
        return
    options = ScaleOptions.from_json(scale)
    if options.how == OBSERVE:
        from .recording import observe  # noqa: F401

        return
    from . import start  # noqa: F401
    from .files import install
    from .parallelism import choice

    install.prepare()
    choice.of_echelon(options)


def begin(scale: str, *, was_forked: bool) -> None:
    """Scale the script that follows, as the JSON of ScaleOptions says."""
    rank_pid = os.environ.pop("ECHELON_CHILD_OF", "")
    if rank_pid:
        from . import child_training

        child_training.guard(int(rank_pid))
        return
    options = _read(scale)
    if bench.VARIABLE in os.environ:
        _begin_measuring()
    is_saved = checkpoint.VARIABLE in os.environ
    is_recorded = records.VARIABLE in os.environ or rehearsal.VARIABLE in os.environ
    if os.environ.get("WORLD_SIZE", "1") == "1" and not (is_saved or is_recorded or options.num_shards):
        from .files import writers

        writers.install_on_one_rank()
        return  # one rank is one device: nothing to share, and nothing else that differs from plain Python
    try:
        _check(options, is_saved=is_saved)
        if options.how == OBSERVE:
            from .recording import observe
            from .rehearsal import course
        else:
            from . import start
    except targets.UnknownPyTorch as error:
        targets.end(error)
    except ImportError as error:
        feature = "echelon prove" if options.how == OBSERVE else f"--scale {options.how}"
        _end(f"{feature} needs PyTorch in the Python of the ranks: {error}", 1)
    if options.how == OBSERVE and rehearsal.VARIABLE in os.environ:
        course.begin(os.environ)
    elif options.how == OBSERVE:
        observe.begin(os.environ)
    else:
        try:
            start.start_hooked(options, was_forked=was_forked)
        except UsageError as error:
            _end(f"{error.message}\n  hint: {error.hint}", error.exit_code)


def _check(options: ScaleOptions, *, is_saved: bool) -> None:
    """Look at all that this run takes from PyTorch, before any of it is replaced; rank 0 tells what is left out."""
    targets.check("scale", *(["save"] if is_saved else []), *(["dtensor"] if options.how in DTENSOR else []))
    gone = targets.changes("look")
    if gone and os.environ.get("RANK") == "0":
        sys.stderr.write(f"echelon: {targets.describe(gone)}; tools that trace or export a model see that of a rank\n")


def _begin_measuring() -> None:
    """Note the times of steps; without PyTorch there are none."""
    try:
        from . import step_times
    except ImportError as error:
        _end(f"echelon bench scaling needs PyTorch in the Python of the ranks: {error}", 1)
    step_times.begin(os.environ)


def _read(text: str) -> ScaleOptions:
    try:
        return ScaleOptions.from_json(text)
    except UsageError as error:
        _end(f"{error.message}\n  hint: {error.hint}", error.exit_code)


def _end(message: str, exit_code: int) -> NoReturn:
    sys.stderr.write(f"echelon: error: {message}\n")
    sys.stderr.flush()
    os._exit(exit_code)
