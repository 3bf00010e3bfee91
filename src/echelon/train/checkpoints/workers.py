"""Random numbers that the workers of a script's own DataLoader draw: a resumed loop goes on with them."""

import weakref
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

from torch.utils.data import DataLoader, IterableDataset

from ..batches import has_workers, twin_of
from ..replay.workers_draws import WorkersDraws

Saved = Tuple[int, Dict[int, Any]]
"""The number of workers, and the states of each."""

_OTHERS = (
    "note: the workers of the loader draw other random numbers from here on: the checkpoint has those of another "
    "number of ranks or of workers"
)


class Workers:
    """The workers of the loaders of one training."""

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self._say = say
        self._known: "weakref.WeakKeyDictionary[Any, Tuple[WorkersDraws, Any]]" = weakref.WeakKeyDictionary()
        """By loader: what its workers have drawn, and a copy of it whose workers tell this."""
        self._draws: Optional[WorkersDraws] = None
        """Those of the loader of this epoch."""
        self._lives_on = False
        self._resumed: Optional[Saved] = None

    def states(self, *, is_in_middle: bool) -> Saved:
        """Return the states for a checkpoint; workers that end with their epoch have none at its end."""
        if self._draws is None or not (is_in_middle or self._lives_on):
            return 0, {}
        return self._draws.num_workers, dict(self._draws.states)

    def go_on(self, saved: Saved, *, are_ranks_as_before: bool) -> None:
        """Let the next workers go on from the states of a checkpoint; say so if they cannot."""
        self._resumed = saved if are_ranks_as_before else (0, saved[1])

    def begin(self, loader: Any, num_taken: int) -> Tuple[Any, int]:
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


def _can_tell(loader: Any) -> bool:
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
