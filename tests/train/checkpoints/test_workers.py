"""Noise that the workers of a script's own loader draw goes on where it was."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiers import some
from torch.utils.data import DataLoader, IterableDataset

from echelon.train.checkpoints.position import Behind
from echelon.train.checkpoints.random_numbers import Saved, Workers
from echelon.train.wire import plain_data

from .test_saving import HERE, rows, run

NUM_BATCHES = 5
MOMENTS = [(3, 2, False), (7, 3, True), (5, 2, True), (8, 3, False), (1, 1, False), (10, 2, True)]
"""Batches taken of three epochs with five each, the workers, and whether they stay; the third is at an epoch's end."""


class Noisy:
    """Samples with numbers that are drawn while they are loaded."""

    def __init__(self) -> None:
        self.own = random.Random(5)

    def __len__(self) -> int:
        return 2 * NUM_BATCHES

    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.tensor([place, torch.rand(()), random.random(), self.own.random()])


class Stream(IterableDataset[int]):
    """Samples without an index."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def batches(loader: Any, workers: Workers, first: int) -> Iterator[tuple[int, Any]]:
    """Yield the batches that are left of three epochs, each with the number of batches of its epoch so far."""
    for epoch in range(first // NUM_BATCHES, 3):
        taken = max(first - epoch * NUM_BATCHES, 0)
        torch.manual_seed(epoch)  # what the training draws, and with it the seeds of new workers
        random.seed(epoch)
        told, num_passed_over = workers.begin(loader, taken)
        behind = Behind(told, taken, had_workers=False, num_passed_over=num_passed_over)
        if taken:
            behind.skip()
        yield from enumerate(workers.batches(behind.batches), taken + 1)


def recorded(loader: Any, taken: int) -> tuple[list[Any], Saved]:
    """Return the first batches, and the states of the workers behind them."""
    workers = Workers()
    loop = batches(loader, workers, 0)
    dealt = [next(loop) for _ in range(taken)]
    states = workers.states(is_in_middle=True)
    return [batch.tolist() for _, batch in dealt], plain_data.decode(plain_data.encode(list(states)))


@pytest.mark.parametrize(("taken", "num_workers", "lives_on"), some(MOMENTS, 3))
def test_workers_draw_on(taken: int, num_workers: int, lives_on: bool) -> None:
    """For each worker, whichever has the next batch; a checkpoint at an epoch's end has what lives on."""

    def loader() -> "DataLoader[Any]":
        return DataLoader(Noisy(), 2, num_workers=num_workers, persistent_workers=lives_on)  # type: ignore[arg-type]

    wanted, _ = recorded(loader(), 3 * NUM_BATCHES)
    first, (saved_workers, saved) = recorded(loader(), taken)
    workers = Workers()
    workers.go_on((saved_workers, saved), are_ranks_as_before=True)
    second = [batch.tolist() for _, batch in batches(loader(), workers, taken)]
    assert [*first, *second] == wanted


@pytest.mark.parametrize(("are_ranks_as_before", "num_workers"), [(True, 2), (False, 1)])
def test_others_are_named(are_ranks_as_before: bool, num_workers: int) -> None:
    """On another number of ranks or of workers the noise begins anew, and a line says so once."""
    said: list[str] = []
    workers = Workers(said.append)
    workers.go_on((1, {0: {"torch": b""}}), are_ranks_as_before=are_ranks_as_before)
    loader: DataLoader[Any] = DataLoader(Noisy(), 2, num_workers=num_workers)  # type: ignore[arg-type]
    for _ in range(2):
        workers.begin(loader, 0)
    (line,) = said
    assert line.startswith("note: the workers of the loader draw other random numbers from here on")


def test_loaders_that_cannot_tell() -> None:
    """Without workers, or with a stream, the script's own loader is read."""
    for loader in (DataLoader(Noisy(), 2), DataLoader(Stream(), num_workers=1), [1, 2]):  # type: ignore[arg-type]
        workers = Workers()
        assert workers.begin(loader, 0) == (loader, 0)
        assert workers.states(is_in_middle=True) == (0, {})


@pytest.mark.tier("all")
@pytest.mark.parametrize("how", ["anew", "persistent"])
def test_killed_run_goes_on_with_the_noise(tmp_path: Path, how: str) -> None:
    """In the middle of the second epoch, where it is the second worker's turn."""
    words = ("--checkpoint-every", "1steps", str(HERE / "noisy.py"), how)
    undisturbed, disturbed = run(tmp_path, 2, *words), run(tmp_path, 2, *words, fails_at=11)
    assert disturbed.returncode == 0, disturbed.stderr
    assert "continues after step 10, from a checkpoint" in disturbed.stderr
    assert rows(disturbed.stdout) == rows(undisturbed.stdout)
    assert len(rows(undisturbed.stdout)) == 21
