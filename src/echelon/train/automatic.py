"""Before an unchanged script: hook PyTorch, or say in one line why that cannot be."""

import os
import sys
from typing import NoReturn

from .. import records
from ..errors import UsageError
from ..scale_options import DTENSOR, MODEL_PARALLEL, OBSERVE, ScaleOptions


def prepare(scale: str) -> None:
    """Do what every rank would have to, in the process that they are forks of, where the script imports PyTorch."""
    if "torch" not in sys.modules:
        return
    how = ScaleOptions.from_json(scale).how
    if how == OBSERVE:
        from .proof import observe  # noqa: F401

        return
    from . import start  # noqa: F401
    from .files import install

    install.prepare()
    if how in DTENSOR:
        from .parallel import elementwise  # noqa: F401
    if how in MODEL_PARALLEL:
        from .parallelism import context, pipeline, tensor  # noqa: F401


def begin(scale: str, *, was_forked: bool) -> None:
    """Scale the script that follows, as the JSON of ScaleOptions says."""
    rank_pid = os.environ.pop("ECHELON_CHILD_OF", "")
    if rank_pid:
        from . import child_training

        child_training.guard(int(rank_pid))
        return
    options = _read(scale)
    if os.environ.get("WORLD_SIZE", "1") == "1" and records.FOLDER not in os.environ and not options.num_shards:
        return  # one rank is one device: nothing to share, and nothing that differs from plain Python
    try:
        if options.how == OBSERVE:
            from .proof import observe
        else:
            from . import start
    except ImportError as error:
        what = "echelon prove" if options.how == OBSERVE else "--scale %s" % options.how
        _end("%s needs PyTorch in the Python of the ranks: %s" % (what, error), 1)
    if options.how == OBSERVE:
        observe.begin(os.environ)
    else:
        try:
            start.start_hooked(options, was_forked=was_forked)
        except UsageError as error:
            _end("%s\n  hint: %s" % (error.message, error.hint), error.exit_code)


def _read(text: str) -> ScaleOptions:
    try:
        return ScaleOptions.from_json(text)
    except UsageError as error:
        _end("%s\n  hint: %s" % (error.message, error.hint), error.exit_code)


def _end(message: str, exit_code: int) -> NoReturn:
    sys.stderr.write("echelon: error: %s\n" % message)
    sys.stderr.flush()
    os._exit(exit_code)
