"""Modules that libraries import later, during a run: importing them once before the fork saves time.

Measured on 2026-11-21 with torch 2.13.0+cpu, Python 3.11, OMP_NUM_THREADS=1, two x86 cores: `sys.modules`
before and after the call and its wall time, in a process that had done `import torch` and nothing else; then
again after the preload, which left under 0.02 s of each row (of torch.compile, also 0.7 s of compiling).
Only what is worth 0.03 s has a row. Not worth one: init_process_group("gloo") 0.004 s and no module,
DataLoader 0.002 s (with workers 0.04 s and 4 small modules), torch.save and load 0.003 s, schedulers 0 s,
init_device_mesh 0.001 s, backward, autocast, GradScaler, clip_grad_norm_ 0 s.
`tests/script/test_lazy.py` repeats each row where torch is installed.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """A row: a script that mentions this name will import these modules later."""

    mention: str
    preload: tuple[str, ...]
    seconds: float
    """The time of a rank's first call without the preload."""
    reason: str


ROWS = (
    Later(
        mention="torch.optim",
        preload=("torch._dynamo",),
        seconds=0.9,
        reason="the first optimizer, SGD or AdamW, imports 823 modules, torch._dynamo and sympy among them",
    ),
    Later(
        mention="torch.nn.parallel.DistributedDataParallel",
        preload=("torch._dynamo",),
        seconds=1.0,
        reason="its constructor imports torch._dynamo; forward and backward import nothing",
    ),
    Later(
        mention="torch.nn.parallel.distributed",
        preload=("torch._dynamo",),
        seconds=1.0,
        reason="as torch.nn.parallel.DistributedDataParallel",
    ),
    Later(
        mention="torch.distributed.fsdp",
        preload=("torch._dynamo",),
        seconds=0.56,
        reason="fully_shard imports torch._dynamo, after 0.7 s for torch.distributed.fsdp itself",
    ),
    Later(
        mention="torch.utils.checkpoint",
        preload=("torch._dynamo",),
        seconds=1.0,
        reason="the first checkpoint() imports torch._dynamo",
    ),
    Later(
        mention="torch.compile",
        preload=("torch._dynamo", "torch._inductor.compile_fx"),
        seconds=2.0,
        reason="torch.compile(module) imports 1,404 modules before it compiles anything",
    ),
)


def later(mentions: Iterable[str]) -> tuple[str, ...]:
    """Return the modules that a script with these names will import later.

    >>> later({"torch.optim.AdamW"})
    ('torch._dynamo',)
    """
    modules: dict[str, None] = {}
    names = tuple(mentions)
    for row in ROWS:
        if any(name == row.mention or name.startswith(row.mention + ".") for name in names):
            modules.update(dict.fromkeys(row.preload))
    return tuple(modules)
