"""The threads with which gloo listens make way for those that compute, where echelon made the process group."""

import subprocess
from pathlib import Path

import pytest
from tests import warm

from echelon.train.wire import groups

LOOK = """
import os

def say():
    found = []
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/comm") as file:
            if "gloo_tcp_loop" in file.read():
                is_batch = os.sched_getscheduler(int(thread)) == os.SCHED_BATCH
                found += [os.getpriority(os.PRIO_PROCESS, int(thread)), int(is_batch)]
    print("program", os.getpriority(os.PRIO_PROCESS, 0), "loops", *found)
"""
ONE_DEVICE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 2)), batch_size=8):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
say()
"""
STRATEGY = """
import torch
from torch import nn
import echelon

def block(_):
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh())

run = echelon.start()
run.parallelize(nn.Sequential(*map(block, range(4))), echelon.Strategy(replicate=2, shard=2))
say()
"""
BY_HAND = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
say()
dist.destroy_process_group()
"""


def run(folder: Path, script: str, *words: str) -> tuple[int, set[tuple[int, int]]]:
    """Return the niceness of rank 0, and of its loops their niceness and whether they are batch threads."""
    (folder / "train.py").write_text(LOOK + script)
    command = ["-m", "echelon", "run", *words, "train.py"]
    done: subprocess.CompletedProcess[str] = warm.run(command, cwd=folder)
    assert done.returncode == 0, done.stderr
    line = next(line.split() for line in done.stdout.splitlines() if line.startswith("program "))
    return int(line[1]), {
        (int(niceness), int(is_batch)) for niceness, is_batch in zip(line[3::2], line[4::2], strict=True)
    }


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (ONE_DEVICE, ["-n", "2"]),
        (ONE_DEVICE, ["-n", "2", "--sync-every", "2", "--async"]),
        (ONE_DEVICE, ["-n", "2", "--compress", "powersgd"]),
        (STRATEGY, ["-n", "4"]),
    ],
)
def test_loops_make_way(tmp_path: Path, script: str, words: list[str]) -> None:
    """Each process group has a loop of its own; all of them are lower than the program, which stays as it was."""
    program, loops = run(tmp_path, script, *words)
    lowest = 19
    assert loops == {(min(lowest, program + groups.NICENESS), 1)}


def test_group_of_the_script_is_left_alone(tmp_path: Path) -> None:
    """What a script distributes itself is its own."""
    program, loops = run(tmp_path, BY_HAND, "-n", "2")
    assert loops == {(program, 0)}
