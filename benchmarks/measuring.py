"""Measure what the measures of a rank, the looks at its lines, and the notes of its calls cost its training, in turns.

python -m benchmarks.measuring
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from echelon.node import call_page
from echelon.node.pulse import PAGE_BYTES
from echelon.node.sampler import Sampler
from echelon.train import patches
from echelon.train.measuring.calls import Calls
from echelon.train.measuring.install import install

NUM_STEPS, NUM_TURNS = 60, 60
NUM_CALLS = 1000
LOOK_TURNS, TURN_SECONDS = 60, 2.0


def main() -> None:
    """Print the time that is added to a step, with its 95 % confidence interval."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for width in (64, 1024):
        model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        loader = DataLoader(TensorDataset(torch.randn(NUM_STEPS * 64, width)), batch_size=64)
        _turn(loader, model, optimizer)
        differences, plain = [], []
        for _ in range(NUM_TURNS):
            without = _turn(loader, model, optimizer)
            install(["samples"] * 15, lambda _: None, lambda _: None, lambda _: None)
            with_measures = _turn(loader, model, optimizer)
            patches.undo()
            plain.append(without)
            differences.append(with_measures - without)
        step, added = statistics.median(plain), statistics.median(differences)
        spread = 1.96 * 1.25 * statistics.stdev(differences) / math.sqrt(NUM_TURNS)  # of a median
        print(
            f"a step of {step * 1e6:.0f} µs: {added * 1e6:+.0f} µs ± {spread * 1e6:.0f} µs, {added / step:+.2%} of it; "
            f"0.2 % of a step of {added / 0.002 * 1e3:.0f} ms"
        )
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(20)))
    rows = torch.randn(64, 64)
    _looks("steps of PyTorch", lambda: model(rows).sum().backward())
    _looks("a loop of Python", lambda: sum(number * number for number in range(1000)))
    _print_notes()


def _print_notes() -> None:
    """Print what it takes to note a collective, a pass backward, and a batch in a page."""
    dist.init_process_group("gloo", store=dist.HashStore(), world_size=1, rank=0)
    page = os.memfd_create("page")
    os.ftruncate(page, call_page.END)
    calls, tensor, iterator = Calls(page), torch.ones(128, 10), iter(DataLoader(torch.ones(1, 1)))

    def collective(_: torch.Tensor) -> None:
        pass

    def go_backward() -> None:
        with calls.going_backward() as wait:
            wait()

    noted = calls.recorded("all_reduce", collective)
    plain = _least(lambda: collective(tensor))
    print(f"a collective: {_least(lambda: noted(tensor)) - plain:.1f} µs")
    print(f"a batch: {_least(lambda: calls.loaded(iterator)):.1f} µs")
    dist.get_world_size = lambda: 2
    print(f"a pass backward: {_least(go_backward):.1f} µs")


def _least(act: Callable[[], object]) -> float:
    """Return the microseconds of processor time that a call takes: the least of many turns, as others use the cores."""
    times = []
    for _ in range(NUM_TURNS):
        began = time.process_time()
        for _ in range(NUM_CALLS):
            act()
        times.append((time.process_time() - began) / NUM_CALLS * 1e6)
    return min(times)


def _looks(what: str, work: Callable[[], object]) -> None:
    """Print the processor time that looks add to the same work, as a part of a core."""
    page = os.memfd_create("page")
    os.ftruncate(page, PAGE_BYTES)
    sampler = Sampler(page)
    sampler.begin()
    began, number = time.monotonic(), 0
    while time.monotonic() - began < TURN_SECONDS:
        work()
        number += 1
    differences = []
    for turn in range(2 * LOOK_TURNS):
        sampler._stop()
        if turn % 2:
            sampler.resume()
        began, used = time.monotonic(), time.process_time()
        for _ in range(number):
            work()
        share = (time.process_time() - used) / TURN_SECONDS
        differences.append(share if turn % 2 else -share)
    added = [without + looked for without, looked in zip(differences[::2], differences[1::2], strict=True)]
    spread = 1.96 * 1.25 * statistics.stdev(added) / math.sqrt(LOOK_TURNS)
    print(f"{what}: looks add {statistics.median(added):+.2%} ± {spread:.2%} of a core")
    sampler._end()
    os.close(page)


def _turn(loader: DataLoader[tuple[torch.Tensor, ...]], model: torch.nn.Module, optimizer: torch.optim.SGD) -> float:
    """Return the processor time of one step, as a median over an epoch."""
    times = []
    last = time.process_time()
    for (rows,) in loader:
        loss = model(rows).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.process_time()
        times.append(now - last)
        last = now
    return statistics.median(times)


if __name__ == "__main__":
    main()
