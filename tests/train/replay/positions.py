"""One training over a loader in this process: recorded as each rank, and continued as each rank of another number."""

import random
import types
import weakref
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, WeightedRandomSampler

from echelon.train import loops
from echelon.train.global_tensors.tensors import Sharded
from echelon.train.replay.passes import Pass, Passes
from echelon.train.replay.tape import PLAY, RECORD, Journal
from echelon.train.rng import generators
from echelon.train.rng import states as own_generators
from echelon.train.wire import plain_data
from echelon.train.wire.world import World

_of_module = random.Random(5)
SAMPLERS = (
    "in order",
    "shuffled",
    "own generator",
    "weighted",
    "subset",
    "batches",
    "no batches of one",
    "draws by batch",
)


class DrawsByBatch:
    """A sampler that draws each batch when it is asked for."""

    def __init__(self, size: int, batch: int) -> None:
        self._size, self._batch = size, batch

    def __len__(self) -> int:
        return -(-self._size // self._batch)

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            yield torch.randint(self._size, (self._batch,)).tolist()


class Case:
    """A loader, and the moment of the checkpoint: after `taken` batches, counted over all epochs."""

    def __init__(self, sampler: str, size: int, batch: int, taken: int, *, workers: int = 0, seed: int = 0) -> None:
        self.sampler, self.size, self.batch = sampler, size, batch
        self.taken, self.workers, self.seed = taken, workers, seed
        self.is_persistent = bool(workers) and seed % 2 == 0

    def loader(self) -> "DataLoader[Any]":
        """Return the loader as the top of a script makes it."""
        torch.manual_seed(self.seed)
        samples, options = range(self.size), {"num_workers": self.workers, "persistent_workers": self.is_persistent}
        if self.sampler in ("in order", "shuffled"):
            return DataLoader(samples, self.batch, shuffle=self.sampler == "shuffled", **options)  # type: ignore[arg-type]
        if self.sampler == "own generator":
            own = torch.Generator().manual_seed(self.seed + 1)
            return DataLoader(samples, self.batch, shuffle=True, generator=own, **options)  # type: ignore[arg-type]
        if self.sampler == "no batches of one":
            return DataLoader(samples, self.batch, shuffle=True, drop_last=True, **options)  # type: ignore[arg-type]
        if self.sampler == "batches":
            batches = BatchSampler(RandomSampler(samples), self.batch, drop_last=False)
            return DataLoader(samples, batch_sampler=batches, **options)  # type: ignore[arg-type]
        if self.sampler == "draws by batch":
            return DataLoader(samples, batch_sampler=DrawsByBatch(self.size, self.batch), **options)  # type: ignore[arg-type]
        chosen: Any = SequentialSampler(range(0, self.size, 2))
        if self.sampler == "weighted":
            chosen = WeightedRandomSampler([1.0 + place % 3 for place in samples], self.size)
        elif self.sampler == "subset":
            chosen = torch.utils.data.SubsetRandomSampler(range(self.size))
        return DataLoader(samples, self.batch, sampler=chosen, **options)  # type: ignore[arg-type]

    def epochs(self) -> list[list[list[int]]]:
        """Return the batches of three epochs on one device: lists of samples."""
        loader = self.loader()
        return [[batch.tolist() for batch in loader] for _ in range(3)]


class Noisy:
    """Samples with numbers that are drawn while they are loaded, from each generator that a script may use."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._own = random.Random(7)
        self._transform = lambda value: value + _of_module.random()

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.tensor(
            [place, torch.rand(()), random.random(), numpy.random.rand(), self._transform(self._own.random())]
        )


class NoisyCase:
    """A loader whose workers draw numbers, and the moment of the checkpoint."""

    def __init__(self, taken: int, *, workers: int, is_persistent: bool) -> None:
        self.taken, self.workers, self.is_persistent = taken, workers, is_persistent

    def loader(self) -> "DataLoader[Any]":
        """Return the loader as the top of a script makes it."""
        torch.manual_seed(3)
        options: dict[str, Any] = {"num_workers": self.workers, "persistent_workers": self.is_persistent}
        return DataLoader(Noisy(22), 4, shuffle=True, worker_init_fn=_seed_numpy, **options)  # type: ignore[arg-type]


def _seed_numpy(worker: int) -> None:
    numpy.random.seed(worker)
    random.seed(worker)


class Rank:
    """What a pass over a loader needs of the training of one rank."""

    def __init__(self, rank: int, size: int) -> None:
        self.world = World(rank, size, torch.device("cpu"))
        self.options = types.SimpleNamespace(keeps_batch=False)
        self.generators = generators.Generators(rank, None)
        self.sharded_loaders = weakref.WeakKeyDictionary()
        self.first_step = types.SimpleNamespace(note_workers=lambda _: None)
        self.raised = types.SimpleNamespace(refuse_if_caught=lambda: None)
        self.ignore_index = types.SimpleNamespace(ask=lambda _: None)
        self.resumed_pass = (0, 0)
        self.batches_per_step, self.is_reordered = 1, False

    def pop_resumed_pass(self) -> tuple[int, int]:
        taken, self.resumed_pass = self.resumed_pass, (0, 0)
        return taken

    def enter(self, _loop: object) -> None:
        """Begin a step."""

    def leave(self, _loop: object) -> None:
        """End a loop."""


class Script:
    """A loop over three epochs, as `for batch in loader` runs it on one rank."""

    def __init__(self, case: Any, rank: Rank, tape: Journal) -> None:
        self.rank, self.tape = rank, tape
        self.loader = case.loader()
        self.passes = Passes(tape, rank, lambda: None)  # type: ignore[arg-type]
        self._begun = 0

    def batches(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield the number of the epoch, and this rank's samples of a batch; none where it is repeated."""
        for epoch in range(3):
            self._begun += 1
            begin = lambda: loops.Loop(self.loader, self.rank)  # type: ignore[arg-type]  # noqa: E731
            one = Pass(self.passes, self.loader, self._begun, begin)
            self.passes._open[self._begun] = one
            for batch in one:
                yield epoch, [] if self.tape.is_playing else own_rows(batch)


def own_rows(batch: Any) -> list[Any]:
    """Return this rank's samples of a batch."""
    rows: list[Any] = (batch.counted if isinstance(batch, Sharded) else batch).tolist()
    return rows


def recorded(case: Any, size: int) -> tuple[list[list[tuple[int, list[int]]]], dict[str, Any]]:
    """Return each rank's samples up to the moment, and the checkpoint of rank 0."""
    dealt, saved = [], {}
    for rank in range(size):
        tape = Journal()
        tape.phase = RECORD
        script = Script(case, Rank(rank, size), tape)
        loop = script.batches()
        dealt.append([next(loop) for _ in range(case.taken)])
        draws = plain_data.encode(script.passes.draws_of_workers())
        if rank == 0:
            saved = {
                "draws": [],
                "journal": tape.content(),
                "passes": script.passes.positions(),
                "random": generators.portable_state(),
                "own": [own_generators.state_of(one) for one in own_generators.of_loader(script.loader)],
            }
        saved["draws"].append(draws)
    return dealt, saved


def continued(case: Any, size: int, saved: dict[str, Any]) -> list[list[tuple[int, list[int]]]]:
    """Return each rank's samples after the moment, on another number of ranks."""
    dealt = []
    for rank in range(size):
        tape = Journal()
        tape.load(saved["journal"])
        tape.phase = PLAY
        script = Script(case, Rank(rank, size), tape)
        loop = script.batches()
        for _ in range(case.taken):
            next(loop)
        tape.go_on()
        draws = plain_data.decode(saved["draws"][rank]) if size == len(saved["draws"]) else {}
        script.passes.go_on(saved["passes"], draws)
        for one, state in zip(own_generators.of_loader(script.loader), saved["own"], strict=True):
            own_generators.put_state(one, state)
        generators.put_portable_state(saved["random"])
        dealt.append(list(loop))
    return dealt
