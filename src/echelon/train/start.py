"""Begin: `echelon.start()` in a script, or by hooks before an unchanged one."""

import os
from typing import Optional

from . import hooks, wishes
from . import world as worlds
from .files import sharing
from .run import Run

_run: Optional[Run] = None


def start() -> Run:
    """Return this process's run; call it once, before the model is made. Alone on one process it works too."""
    global _run
    if _run is None:
        _run = Run(worlds.read(os.environ), is_hooked=False)
        hooks.install(_run)
        if _run.world.size > 1:
            worlds.join(_run.world)
            _run.streams.follow(_run.world)  # the script may have seeded before
    return _run


def start_hooked() -> None:
    """Scale the script that begins after this."""
    global _run
    _run = Run(worlds.read(os.environ), is_hooked=True, wishes=wishes.read(os.environ))
    hooks.install(_run)
    sharing.install(_run)
