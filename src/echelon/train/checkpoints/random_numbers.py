"""The random numbers of a rank: those of torch, numpy and Python, and the streams that echelon draws for a rank."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ..batches import has_workers, twin_of
from ..exact.keys import Keys
from ..rng import generators
from ..rng.generators import Generators
from ..rng.states import of_loader, put_state, state_of
from ..rng.workers_draws import WorkersDraws
from ..wire import plain_data

OWN = "of ranks: "
"""How the name of a tensor begins that holds plain data; no name of a script's model does."""


def as_bytes(value: object) -> torch.Tensor:
    """Return plain data as a tensor of bytes, shape (number of bytes,)."""
    return torch.frombuffer(bytearray(plain_data.encode(value)), dtype=torch.uint8)


def from_bytes(content: torch.Tensor) -> Any:
    """Return what `as_bytes` encoded.

    >>> from_bytes(as_bytes({"rate": 0.1}))
    {'rate': 0.1}
    """
    return plain_data.decode(content.numpy().tobytes())


Saved = tuple[int, dict[int, Any]]
"""The number of workers, and the states of each."""

_OTHERS = (
    "note: the workers of the loader draw other random numbers from here on: the checkpoint has those of another "
    "number of ranks or of workers"
)


class Workers:
    """The workers of the loaders of one training."""

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self._say = say
        self._known: weakref.WeakKeyDictionary[Any, tuple[WorkersDraws, Any]] = weakref.WeakKeyDictionary()
        """By loader: what its workers have drawn, and a copy of it whose workers tell this."""
        self._draws: WorkersDraws | None = None
        """Those of the loader of this epoch."""
        self._lives_on = False
        self._resumed: Saved | None = None

    def states(self, *, is_in_middle: bool) -> Saved:
        """Return the states for a checkpoint; workers that end with their epoch have none at its end."""
        if self._draws is None or not (is_in_middle or self._lives_on):
            return 0, {}
        return self._draws.num_workers, dict(self._draws.states)

    def go_on(self, saved: Saved, *, are_ranks_as_before: bool) -> None:
        """Let the next workers go on from the states of a checkpoint; say so if they cannot."""
        self._resumed = saved if are_ranks_as_before else (0, saved[1])

    def begin(self, loader: Any, num_taken: int) -> tuple[Any, int]:
        """Return the loader to read in place of this one, and how many workers load a sample that nobody gets.

        `num_taken` are the batches of the epoch that the loop has got before.
        """
        (num_workers, states), self._resumed = self._resumed or (0, {}), None
        if not _can_tell(loader):
            self._draws = None
            return loader, 0
        if loader not in self._known:
            draws = WorkersDraws(loader.num_workers)
            parts = {"collate_fn": loader.collate_fn, "worker_init_fn": loader.worker_init_fn or _nothing}
            self._known[loader] = draws, twin_of(loader, **draws.around(parts))
        self._draws, telling = self._known[loader]
        self._lives_on = loader.persistent_workers
        if has_workers(telling):
            return telling, 0
        if states and num_workers == loader.num_workers:
            self._draws.go_on(states, num_taken)
        elif states:
            self._say(_OTHERS)
        elif self._lives_on and self._draws.states:  # those of the resumed epoch have ended with it
            self._draws.go_on(self._draws.states, 0)
        self._draws.begin()
        return telling, self._draws.first_worker

    def batches(self, told: Iterator[Any]) -> Iterator[Any]:
        """Return the batches of the loader that `begin` has returned, without what its workers tell."""
        draws = self._draws
        return told if draws is None else _batches(told, draws)


def _batches(told: Iterator[Any], draws: WorkersDraws) -> Iterator[Any]:
    while True:
        try:
            batch = draws.next(told)
        except StopIteration:
            return
        yield batch


def _can_tell(loader: object) -> bool:
    """Say whether a loader has workers of PyTorch that load samples by index, one batch after the other."""
    return (
        isinstance(loader, DataLoader)
        and type(loader).__iter__ is DataLoader.__iter__
        and loader.num_workers > 0
        and loader.batch_sampler is not None
        and not isinstance(loader.dataset, IterableDataset)
        and getattr(loader, "in_order", True)
    )


def _nothing(_: int) -> None:
    """Begin a worker of a loader that has no function for this."""


NOW, OF_EPOCH = OWN + "random/rank-%d", OWN + "random of the epoch/rank-%d"


class RandomNumbers:
    """What is saved of them: the states at the begin of the epoch, which a shuffle follows, and those of now."""

    def __init__(self, streams: list[Generators], keys: Keys | None) -> None:
        self._streams, self._keys = streams, keys
        self._of_epoch: Any = {"global": generators.portable_state(), "loader": []}
        self._of_loader: list[Any] = []
        """The generators from which the loader draws, besides the global ones."""
        self._resumed: Any = None

    @property
    def is_resumed(self) -> bool:
        return self._resumed is not None

    @property
    def of_workers(self) -> Saved:
        """The states of the workers of a loader in the checkpoint."""
        num_workers, states = self._resumed.get("workers", (0, {})) if self.is_resumed else (0, {})
        return num_workers, states

    def tensors(self, rank: int, workers: Saved) -> dict[str, torch.Tensor]:
        now = {
            "global": generators.portable_state(),
            "streams": [stream.own_state() for stream in self._streams],
            "keys": self._keys.place() if self._keys is not None else None,
            "loader": [state_of(one) for one in self._of_loader],
            "workers": list(workers),
        }
        return {NOW % rank: as_bytes(now), OF_EPOCH % rank: as_bytes(self._of_epoch)}

    def take(self, kept: Mapping[str, torch.Tensor], rank: int, num_saved: int) -> None:
        """Take the states of this rank. A rank that was not there takes those in which all ranks were equal.

        Ranks are equal where all draw the same order of samples; what differs begins anew on a further rank.
        """
        now = [from_bytes(kept[NOW % one]) for one in range(num_saved)]
        of_epoch = [from_bytes(kept[OF_EPOCH % one]) for one in range(num_saved)]
        if rank < num_saved:
            self._of_epoch, self._resumed = of_epoch[rank], now[rank]
            return
        self._of_epoch = {"global": _common([one["global"] for one in of_epoch]), "loader": of_epoch[0]["loader"]}
        common = _common([one["global"] for one in now])
        self._resumed = {"global": common, "streams": [], "keys": now[0]["keys"], "loader": now[0]["loader"]}

    def begin_epoch(self, loader: object, *, is_in_middle: bool) -> None:
        """Note the states before the loader shuffles; after a checkpoint in the middle of an epoch, set them again."""
        self._of_loader = of_loader(loader)
        if is_in_middle:
            generators.put_portable_state(self._of_epoch["global"])
            _put(self._of_loader, self._of_epoch["loader"])
            return
        if self.is_resumed:
            _put(self._of_loader, self._resumed["loader"])
        of_loader_now = [state_of(one) for one in self._of_loader]
        self._of_epoch = {"global": generators.portable_state(), "loader": of_loader_now}

    def go_on(self) -> None:
        """Set the states of the checkpoint once more, behind the shuffle, and leave them to the training."""
        if self.is_resumed:
            self.put()
            _put(self._of_loader, self._resumed["loader"])
            self._resumed = None

    def put(self) -> None:
        """Set the states of the checkpoint; a loop over a loader does so once more."""
        states = self._resumed
        for stream, state in zip(self._streams, states["streams"], strict=False):
            if state is not None:
                stream.put_own_state(state)
        if self._keys is not None and states["keys"] is not None:
            self._keys.go_on(tuple(states["keys"]))
        generators.put_portable_state(states["global"])


def _put(found: list[Any], states: list[Any]) -> None:
    for one, state in zip(found, states, strict=False):
        put_state(one, state)


def _common(every: list[list[Any]]) -> list[Any]:
    """Return each state in which all ranks were equal, and in place of others this rank's own."""
    own = generators.portable_state()
    return [
        states[0] if all(torch.equal(as_bytes(states[0]), as_bytes(state)) for state in states) else mine
        for mine, *states in zip(own, *every, strict=False)
    ]
