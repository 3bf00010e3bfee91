"""Start echelon: `echelon.start()` in a script, or hooks before an unchanged script."""

import os
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ..orders import checkpoint, rehearsal
from ..orders.scale import ScaleOptions
from . import child_training, hooks, patches
from .exact import keys
from .exact.graph_cuts import GraphCuts
from .files import install as file_hooks
from .rehearsal import step_look
from .rng import unseeded
from .rng.generators import Generators
from .run import Run
from .scaling_error import tell_briefly
from .wire import device as devices
from .wire import groups
from .wire import world as worlds

if TYPE_CHECKING:
    from .continuing import Continuing

_run: Run | None = None


def start(exact: int = 0) -> Run:
    """Return this process's run; call it once, before the model is made. A single process needs no launcher."""
    global _run
    if _run is None:
        _run = prepare(exact)
        _run.before_joining()  # which leaves the oracle alone
        if _run.world.size > 1:
            _meet(_run.world)
            _run.generators.follow(_run.world)  # the script may have seeded before
    keys.refuse_other(exact, _run.options.num_shards)
    return _run


def current() -> Run | None:
    """Return this process's run; None before start()."""
    return _run


def prepare(exact: int = 0) -> Run:
    """Install the hooks of start(), without meeting other ranks."""
    tell_briefly()
    run = _explicit(exact)
    hooks.install(run)
    run.watch_devices()
    return run


def _explicit(num_shards: int) -> Run:
    keys.check(num_shards, worlds.read(os.environ).size)
    world = worlds.read(os.environ, num_shards, GraphCuts())
    if world.is_exact:
        _make_repeatable(world)
    with Generators(0, None).kept():  # the script seeds, and not its run
        return Run(world, is_hooked=False, options=ScaleOptions(num_shards=num_shards))


def _meet(world: worlds.World) -> None:
    """Meet the other ranks; a process that computes all virtual shards is alone, and needs no launcher."""
    if world.processes.size == 1 and not dist.is_initialized():
        groups.form_alone(world.device)
    worlds.join(world)


def start_hooked(options: ScaleOptions, *, was_forked: bool = True) -> None:
    """Scale the script that begins next; `was_forked` says whether this process is a fork of the warm process."""
    global _run
    tell_briefly(options.how)
    world = worlds.read(os.environ, options.num_shards, GraphCuts())
    if world.is_exact:
        _make_repeatable(world)
    saving = _saving(options, world)
    if options.is_model_parallel:
        world = worlds.of_split(world)
    _run = Run(world, is_hooked=True, options=options)
    _run.first_step.may_fork_for_device = was_forked
    hooks.install(_run)
    file_hooks.install(_run.files, _run.world.processes, is_saved=saving is not None)
    if saving is not None:
        saving.install(_run)
    if rehearsal.VARIABLE in os.environ:
        step_look.begin(os.environ)
    _run.watch_devices()
    if world.processes.size > 1:
        seed = worlds.seed_of_run(os.environ)
        unseeded.install(unseeded.SharedEntropy(seed, world.processes.rank, _run.generators))
        archive = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
        child_training.watch_starts(archive, _run.guarded_pid)


def _saving(options: ScaleOptions, world: worlds.World) -> "Continuing | None":
    """Return what saves the training, or continues it; it sets the seed of the run that it continues."""
    order = checkpoint.read(os.environ)
    if order is None:
        return None
    from . import continuing

    return continuing.begin(order, options, world)


def _make_repeatable(world: worlds.World) -> None:
    """Make the bits depend on the values alone: the number of threads would change the order of sums."""
    if not devices.is_accelerator(world.device):
        torch.set_num_threads(1)
    else:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as PyTorch asks for
        torch.use_deterministic_algorithms(True)
        why = "With --exact, cuDNN always chooses the same algorithm."
        patches.replace(torch.backends.cudnn, "benchmark", False, why=why)
