"""Measure what the measures of a rank, the looks at its lines, and the notes of its calls cost its training, in turns.

The third turn has the measures without the watch for bad steps, which shows what this part costs.

python -m benchmarks.measuring
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from echelon.node import call_page
from echelon.node.line_sampler import LineSampler
from echelon.node.pulse import PAGE_BYTES
from echelon.orders.scale import ScaleOptions
from echelon.train import patches
from echelon.train.check.bit_watch import BitWatch
from echelon.train.measuring.batch_origins import BatchOrigins
from echelon.train.measuring.collective_notes import CollectiveNotes
from echelon.train.measuring.install import install
from echelon.train.measuring.value_watch import ValueWatch
from echelon.train.wire.world import World

NUM_STEPS, NUM_TURNS = 60, 60
NUM_CALLS = 1000
WATCH = (
    (ValueWatch, "note"), (ValueWatch, "before_step"), (ValueWatch, "after_step"), (ValueWatch, "clear"),
    (BatchOrigins, "gave"), (BatchOrigins, "drew"),
)  # fmt: skip
LOOK_TURNS, TURN_SECONDS = 20, 2.0
BIT_STEPS, WARM_STEPS = 400, 50


def main() -> None:
    """Print the time that is added to a step, with its 95 % confidence interval."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for width in (64, 1024):
        model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        loader = DataLoader(TensorDataset(torch.randn(NUM_STEPS * 64, width)), batch_size=64)
        _turn(loader, model, optimizer)
        differences, of_watch, plain = [], [], []
        for _ in range(NUM_TURNS):
            without = _turn(loader, model, optimizer)
            with_measures = _measured(loader, model, optimizer)
            with ExitStack() as stack:
                for owner, name in WATCH:
                    stack.enter_context(patches.replaced(owner, name, lambda *_: None, why="Its cost is measured."))
                unwatched = _measured(loader, model, optimizer)
            plain.append(without)
            differences.append(with_measures - without)
            of_watch.append(with_measures - unwatched)
        step = statistics.median(plain)
        for what, added in (("measures", differences), ("of these, the watch for bad steps", of_watch)):
            middle = statistics.median(added)
            spread = 1.96 * 1.25 * statistics.stdev(added) / math.sqrt(NUM_TURNS)  # of a median
            print(
                f"a step of {step * 1e6:.0f} µs: {middle * 1e6:+.0f} µs ± {spread * 1e6:.0f} µs, {middle / step:+.2%} "
                f"of it; 0.2 % of a step of {middle / 0.002 * 1e3:.0f} ms: {what}"
            )
    look()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_bits, (f"{folder}/store",), nprocs=2)


def look() -> None:
    """Print what looks cost, in work of two kinds."""
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
    calls, tensor, iterator = CollectiveNotes(page), torch.ones(128, 10), iter(DataLoader(torch.ones(1, 1)))

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


def _bits(rank: int, store: str) -> None:
    """Print which part of the processor time of a step on two ranks is spent for `--watch-bits`, and the most of it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), world_size=2, rank=rank)
    for width in (64, 256, 1024):
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4)))
        optimizer, rows = torch.optim.AdamW(model.parameters(), lr=1e-4), torch.randn(32, width)
        state = SimpleNamespace(num_steps=0, is_local=False, known_parameters=partial(list, model.parameters()))
        options = ScaleOptions(watches_bits=True)
        watch = BitWatch(SimpleNamespace(world=World(rank, 2, rows.device), parallelism=state, options=options))
        watching, began = [], 0.0
        for number in range(BIT_STEPS):
            began = time.thread_time() if number == WARM_STEPS else began
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            state.num_steps += 1
            before = time.thread_time()
            watch.before_step(optimizer)
            watching.append(time.thread_time() - before)
            optimizer.step()
        step = (time.thread_time() - began) / (BIT_STEPS - WARM_STEPS)
        added = sum(watching[WARM_STEPS:]) / (BIT_STEPS - WARM_STEPS)
        if rank == 0:
            most = max(watching[WARM_STEPS:])
            print(
                f"--watch-bits: {added / step:.2%} of a step of {step * 1e3:.2f} ms, {most * 1e3:.2f} ms in one of them"
            )
    dist.destroy_process_group()


def _least(act: Callable[[], object]) -> float:
    """Return the microseconds of processor time that a call takes: the least of many turns, as others use the cores."""
    times = []
    for _ in range(NUM_TURNS):
        began = time.process_time()
        for _ in range(NUM_CALLS):
            act()
        times.append((time.process_time() - began) / NUM_CALLS * 1e6)
    return min(times)


def _measured(
    loader: DataLoader[tuple[torch.Tensor, ...]], model: torch.nn.Module, optimizer: torch.optim.SGD
) -> float:
    install(["samples"] * 19, lambda _: None, lambda _: None, lambda _: None)
    try:
        return _turn(loader, model, optimizer)
    finally:
        patches.undo()


def _looks(what: str, work: Callable[[], object]) -> None:
    """Print the processor time of the looks as a part of a core, and what they add to the main thread's work."""
    page = os.memfd_create("page")
    os.ftruncate(page, PAGE_BYTES)
    sampler = LineSampler(page)
    sampler.begin()
    began, number = time.monotonic(), 0
    while time.monotonic() - began < TURN_SECONDS:
        work()
        number += 1
    shares, mains = [], []
    for turn in range(2 * LOOK_TURNS):
        sampler._stop()
        if turn % 2:
            sampler.resume()
        began, process, thread = time.monotonic(), time.process_time(), time.thread_time()
        for _ in range(number):
            work()
        main = time.thread_time() - thread
        mains.append(main if turn % 2 else -main)
        if turn % 2:
            shares.append((time.process_time() - process - main) / (time.monotonic() - began))
    added = [(without + looked) / -without for without, looked in zip(mains[::2], mains[1::2], strict=True)]
    spread = 1.96 * 1.25 * statistics.stdev(added) / math.sqrt(LOOK_TURNS)
    used, least, most = statistics.median(shares), min(shares), max(shares)
    main = f"{statistics.median(added):+.2%} ± {spread:.2%} to the main thread's time"
    print(f"{what}: looks use {used:.2%} of a core ({least:.2%} to {most:.2%}), and add {main}")
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
