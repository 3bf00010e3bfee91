"""Before an unchanged script: hook PyTorch, or say in one line why that cannot be."""

import os
import sys

from . import wishes

OBSERVE = "observe"


def prepare(scale: str) -> None:
    """Do what every rank would have to, in the process that they are forks of, where the script imports PyTorch."""
    if "torch" not in sys.modules:
        return
    if scale == OBSERVE:
        from .proof import observe  # noqa: F401

        return
    from . import start  # noqa: F401
    from .files import sharing

    sharing.prepare()
    if scale in wishes.SPREAD:
        from .parallel import elementwise  # noqa: F401
    if scale in wishes.SPLITS:
        from .split import gradients, hooks  # noqa: F401


def begin(scale: str, *, was_forked: bool) -> None:
    """Scale the script that follows, as `scale` says; "observe": only record what it does by itself."""
    rank_pid = os.environ.pop("ECHELON_CHILD_OF", "")
    if rank_pid:
        from . import child_training

        child_training.guard(int(rank_pid))
        return
    is_exact = wishes.read(os.environ).num_shards > 0
    if os.environ.get("WORLD_SIZE", "1") == "1" and "ECHELON_RECORD" not in os.environ and not is_exact:
        return  # one rank is one device: nothing to share, and nothing that differs from plain Python
    try:
        if scale == OBSERVE:
            from .proof import observe
        else:
            from . import start
    except ImportError as error:
        what = "echelon prove" if scale == OBSERVE else "--scale %s" % scale
        sys.stderr.write("echelon: error: %s needs PyTorch in the Python of the ranks: %s\n" % (what, error))
        sys.stderr.flush()
        os._exit(1)
    if scale == OBSERVE:
        observe.begin(os.environ)
    else:
        start.start_hooked(was_forked=was_forked)
