"""What only grows is named with its rate and the step at which its limit is met; what a training needs is not."""

import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import warm

from echelon.monitor import growth
from echelon.node import processes

MIB = 1 << 20
GIB = 1 << 30


def samples(num: int = 60, **values: Callable[[int], Any]) -> list[dict[str, Any]]:
    """Return a line a second, with ten steps in each; `values` gives a measure of all ranks for each second."""
    return [
        {
            "time": 1000.0 + at, "attempt": 0, "ranks": 2, "steps": 10 * at,
            "measures": {name: value(at) for name, value in values.items()},
        }
        for at in range(num)
    ]  # fmt: skip


def test_memory_that_only_grows_is_told_with_its_limit() -> None:
    """One rank keeps 5 MiB a step, and the node has 1 GiB left: 204 steps."""
    lines = samples(own_bytes=lambda at: [300 * MIB + 50 * MIB * at, 300 * MIB], host_bytes_left=lambda _: GIB)
    [told] = growth.find(lines)
    assert (told.rank, told.steps_left) == (0, 204)
    assert told.sentence == (
        "the host memory of rank 0 only grows, by 5 MiB in each step: 3.2 GiB now; at this rate its limit of 4.2 GiB "
        "is met after 204 more steps, in 20.4 s"
    )


def test_ranks_of_a_node_share_what_is_left() -> None:
    """Both ranks grow, so each has half of the room; files have the limit of the process."""
    lines = samples(
        own_bytes=lambda at: 300 * MIB + 50 * MIB * at, host_bytes_left=lambda _: GIB,
        open_files=lambda at: 20 + 10 * at, open_files_limit=lambda _: 1024,
    )  # fmt: skip
    memory, files = growth.find(lines)
    assert memory.steps_left == 102
    assert memory.sentence.startswith("the host memory of both ranks only grows")
    assert files.sentence.endswith("by 1 in each step: 610 now; at this rate its limit of 1,024 is met after 414 more "
                                   "steps, in 41.4 s")  # fmt: skip


HEALTHY: dict[str, Callable[[int], float]] = {
    "constant": lambda _: 3 * GIB,
    "cache that fills in the first epoch": lambda at: min(3 * GIB, 300 * MIB + 100 * MIB * at),
    "cache that fills ever more slowly": lambda at: 3 * GIB * (1 - math.exp(-at / 12)),
    "saw of evaluations": lambda at: 2 * GIB + (at % 10) * 60 * MIB,
    "noise": lambda at: 2 * GIB + random.Random(at).random() * 200 * MIB,
    "steps of an allocator": lambda at: 2 * GIB + (at // 25) * 100 * MIB,
    "one jump": lambda at: 2 * GIB + (at > 40) * GIB,
    "little": lambda at: 2 * GIB + at * 100_000,
}


@pytest.mark.parametrize("value", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_training_only_grows_in_nothing(value: Callable[[int], float]) -> None:
    """Caches fill, allocators take blocks, evaluations come and go."""
    assert growth.find(samples(own_bytes=value, host_bytes_left=lambda _: 8 * GIB)) == []


def test_a_limit_that_is_years_away_is_not_told() -> None:
    """The rate is a fact, the day in a year is none."""
    [told] = growth.find(samples(own_bytes=lambda at: GIB + MIB * at, host_bytes_left=lambda _: 9 << 42))
    assert told.sentence == "the host memory of both ranks only grows, by 102.4 KiB in each step: 1.1 GiB now"


def test_run_directory_and_memory_beside_the_ranks() -> None:
    """What a node's memory loses and its ranks do not take is that of workers, or of another program."""
    lines = samples(own_bytes=lambda _: GIB)
    for at, line in enumerate(lines):
        line.update(run_bytes=100 * MIB * at, disk_free_bytes=100 * GIB)
        line["host"] = {"n1": {"memory_used_bytes": GIB + 100 * MIB * at, "memory_bytes": 64 * GIB}}
    assert [each.words for each in growth.find(lines)] == ["the memory in use on n1", "the run directory"]


def test_curve_before_a_kill() -> None:
    """A few points tell the way of the memory."""
    lines = samples(own_bytes=lambda at: [GIB + 100 * MIB * at, GIB])
    assert growth.curve(lines, 0, 0) == (
        "2.2 GiB after 12.0 s, 3.3 GiB after 24.0 s, 4.4 GiB after 35.0 s, 5.6 GiB after 47.0 s, 6.8 GiB after 59.0 s"
    )
    assert growth.curve(lines, 1, 0) == ""


def test_what_a_process_uses(tmp_path: Path) -> None:
    """Memory of its own, threads, and open files with their limit, as the kernel tells them."""
    before = processes.usage(os.getpid())
    kept = bytearray(os.urandom(1)) * (64 * MIB)
    with (tmp_path / "one").open("w"), (tmp_path / "other").open("w"):
        now = processes.usage(os.getpid())
    assert now["own_bytes"] - before["own_bytes"] > 0.9 * len(kept)
    assert now["open_files"] - before["open_files"] == 2
    assert now["open_files_limit"] >= now["open_files"]
    assert now["os_threads"] >= 1
    assert processes.usage(1 << 22) == {}


def test_time_of_other_threads_is_not_the_main_threads() -> None:
    def compute() -> None:
        end = time.thread_time() + 0.3
        while time.thread_time() < end:
            pass

    beside = threading.Thread(target=compute)
    before = processes.waits(os.getpid())
    beside.start()
    beside.join()
    now = processes.waits(os.getpid())
    assert now["beside_seconds"] - before["beside_seconds"] == pytest.approx(0.3, abs=0.1)
    assert now["core_seconds"] - before["core_seconds"] < 0.1


KEEPS = """
import os, signal, sys, time, torch
weight = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
kept = []
for step in range(140):
    weight.grad = torch.ones(4)
    optimizer.step()
    kept.append(torch.ones(1 << 19))
    time.sleep(0.1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.tier("all")
def test_report_of_a_run_that_keeps_everything(tmp_path: Path) -> None:
    """The sentence is said while the run goes on or at its end, and the report has the curve before the kill."""
    (tmp_path / "keeps.py").write_text(KEEPS)
    done = warm.run(["-m", "echelon", "run", "-n", "1", "keeps.py"], cwd=tmp_path)
    assert done.returncode == 128 + signal.SIGKILL
    assert "the host memory of rank 0 only grows, by 2 MiB in each step" in done.stderr
    report = warm.run(["-m", "echelon", "report"], cwd=tmp_path).stdout
    assert "grows     the host memory of rank 0 only grows" in report
    assert "host memory of rank 0 before it was killed: " in report
