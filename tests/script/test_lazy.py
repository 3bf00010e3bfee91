"""The rows of the two tables, repeated where the libraries are installed."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from echelon.script.preloading import LAZY_ROWS, later, why_unsafe
from echelon.script.preloading import ROWS as UNSAFE

PROGRAM = """
import json, os, sys, torch, torch.distributed as dist, torch.nn as nn

for act, preload in json.load(sys.stdin):
    child = os.fork()  # each has imported torch alone
    if not child:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        layer, x = nn.Linear(4, 4), torch.ones(2, 4)
        assert "torch._dynamo" not in sys.modules
        exec(act)
        print(json.dumps([name for name in preload if name not in sys.modules]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
ACTS = {
    "torch.optim": "torch.optim.SGD(layer.parameters(), lr=0.1)",
    "torch.nn.parallel.DistributedDataParallel": "nn.parallel.DistributedDataParallel(layer)",
    "torch.nn.parallel.distributed": "nn.parallel.distributed.DistributedDataParallel(layer)",
    "torch.distributed.fsdp": "from torch.distributed.fsdp import fully_shard; fully_shard(layer)",
    "torch.utils.checkpoint": "from torch.utils.checkpoint import checkpoint; checkpoint(layer, x, use_reentrant=0)",
    "torch.compile": "torch.compile(layer)",
}
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.mark.tier("all")
@needs_torch
def test_each_row_is_what_torch_does() -> None:
    """The call imports the row's modules, in a process that had imported torch alone."""
    asked = json.dumps([(ACTS[row.mention], row.preload) for row in LAZY_ROWS])
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=asked, capture_output=True, text=True, env=env)
    assert done.stdout.splitlines() == ["[]"] * len(LAZY_ROWS), done.stderr


@needs_torch
def test_what_is_preloaded_for_later_starts_no_thread_and_no_process() -> None:
    """The modules of the table leave the warm process fit to fork."""
    names = sorted({name for row in LAZY_ROWS for name in row.preload})
    program = f"""
import os, importlib
for name in {names!r}: importlib.import_module(name)
print(len(os.listdir("/proc/self/task")), open(f"/proc/self/task/{{os.getpid()}}/children").read())
"""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == "1"


def test_rows_are_worth_their_place() -> None:
    """Every row saves at least 0.03 s a rank and has an act that proves it."""
    assert all(row.seconds >= 0.03 for row in LAZY_ROWS)
    assert {row.mention for row in LAZY_ROWS} == set(ACTS)


@pytest.mark.parametrize(
    ("mention", "expected"),
    [
        ("torch.optim.AdamW", ("torch._dynamo",)),
        ("torch.optimal", ()),
        ("torch.compile", ("torch._dynamo", "torch._inductor.compile_fx")),
    ],
)
def test_a_mention_counts_by_whole_names(mention: str, expected: tuple[str, ...]) -> None:
    """torch.optimal is not torch.optim."""
    assert later({mention}) == expected


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("lightning", "lightning"),
        ("lightning.pytorch.callbacks", "lightning"),
        ("lightning_utilities", None),
        ("mpi4py", None),
        ("mpi4py.MPI", "mpi4py.MPI"),
        ("torch.utils.tensorboard.SummaryWriter", "torch.utils.tensorboard"),
        ("torch.utils.data", None),
    ],
)
def test_an_unsafe_prefix_counts_by_whole_names(name: str, prefix: str | None) -> None:
    """A row forbids its module and all below it, and no neighbour."""
    row = why_unsafe(name)
    assert (row.prefix if row else None) == prefix


def test_what_stands_in_for_an_unsafe_package_is_safe_itself() -> None:
    """No row names a forbidden module as its replacement, and every row says where it is known from."""
    assert [name for row in UNSAFE for name in row.instead if why_unsafe(name)] == []
    assert all(row.source and row.reason for row in UNSAFE)
