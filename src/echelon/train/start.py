"""Begin: `echelon.start()` in a script, or by hooks before an unchanged one."""

import os
from typing import Optional

import torch

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
    asked = wishes.read(os.environ)
    world = worlds.read(os.environ, asked.num_shards)
    if world.is_exact:
        _make_repeatable(world)
    _run = Run(world, is_hooked=True, wishes=asked)
    hooks.install(_run)
    sharing.install(_run)


def _make_repeatable(world: worlds.World) -> None:
    """Let nothing but the values decide the bits: the number of threads changes how a sum is cut."""
    if world.device.type == "cpu":
        torch.set_num_threads(1)
    else:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as PyTorch asks for
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
