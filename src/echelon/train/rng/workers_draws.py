"""Random numbers that a loader's workers draw while they load: new workers go on where those of the checkpoint were.

A worker sends the states of its generators with each batch, if they have changed. When a pass goes on in its middle,
the workers before the one whose turn it is load one sample that nobody gets, so that each worker has its old number.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.utils.data import get_worker_info

from ..wire import plain_data
from . import states as random_states
from .states import is_generator, put_state, state_of

States = dict[str, bytes]
"""The states of a worker's generators: of torch, of Python and numpy, and of those that the script has made."""
_TORCH, _LIBRARIES, _OWN = "torch", "libraries", "own"
_PASSED_OVER = -1
_MOST_DEPTH = 5
_MOST_ENTRIES = 100


class WorkersDraws:
    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.states: dict[int, States] = {}
        """By worker: its states when it had loaded the latest of its batches that the loop has got."""
        self.first_worker = 0
        """The worker that loads the first batch of a pass."""
        self._is_resumed = False
        self._known: dict[str, Any] = {}
        """In a worker: the states that the rank knows of."""
        self._is_first = True

    # In the process that trains

    def go_on(self, states: dict[int, States], num_taken: int) -> None:
        """Start the next workers from these states; the loop has already got some batches of the pass."""
        self.states, self.first_worker, self._is_resumed = dict(states), num_taken % self.num_workers, True

    def begin(self) -> None:
        if not self._is_resumed:
            self.states, self.first_worker = {}, 0
        self._is_resumed = False

    def around(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Return changed parts of a loader, with which its workers tell what they draw."""
        return {
            **changes,
            "worker_init_fn": partial(self._enter, changes["worker_init_fn"]),
            "collate_fn": partial(self._collated, changes["collate_fn"]),
        }

    def next(self, batches: Iterator[Any]) -> Any:
        batch, worker, states = next(batches)
        while worker == _PASSED_OVER:
            batch, worker, states = next(batches)
        self.states[worker] = {**self.states.get(worker, {}), **states}
        return batch

    # In a worker

    def _enter(self, init: Callable[[int], object], worker: int) -> None:
        """Begin with the script's function, then with the states of the worker before."""
        init(worker)
        states = {name: plain_data.decode(content) for name, content in self.states.get(worker, {}).items()}
        if _TORCH in states:
            torch.set_rng_state(states[_TORCH])
        if _LIBRARIES in states:
            if states[_LIBRARIES][1] is not None:
                importlib.import_module("numpy")
            random_states.put_portable(states[_LIBRARIES])
        _put_own(states.get(_OWN, ()))
        self._known = _read()

    def _collated(self, collate: Callable[[list[object]], object], samples: list[object]) -> object:
        """Return a batch, the number of the worker, and what its generators have become."""
        worker: int = _worker().id
        if self._passes_over(worker):
            return None, _PASSED_OVER, {}
        batch = collate(samples)
        return batch, worker, self._changed()

    def _changed(self) -> States:
        now, known, self._known = _read(), self._known, {}
        self._known = now
        states = {}
        if _TORCH not in known or not torch.equal(now[_TORCH], known[_TORCH]):
            states[_TORCH] = plain_data.encode(now[_TORCH])
        if _LIBRARIES not in known or not random_states.is_same(now[_LIBRARIES], known[_LIBRARIES]):
            states[_LIBRARIES] = plain_data.encode(random_states.portable())
        if now[_OWN] != known.get(_OWN):
            states[_OWN] = now[_OWN]
        return states

    def _passes_over(self, worker: int) -> bool:
        """Say whether the first sample of a worker was loaded for nobody; the states are then as before it."""
        is_first, self._is_first = self._is_first, False
        if not is_first or worker >= self.first_worker:
            return False
        torch.set_rng_state(self._known[_TORCH])
        random_states.put(self._known[_LIBRARIES])
        _put_own(plain_data.decode(self._known[_OWN]))
        return True


def _worker() -> Any:
    return get_worker_info()


def _read() -> dict[str, Any]:
    own = plain_data.encode([state_of(one) for one in _own_generators()])
    return {_TORCH: torch.get_rng_state(), _LIBRARIES: random_states.keep(), _OWN: own}


def _put_own(states: Any) -> None:
    for generator, state in zip(_own_generators(), states, strict=False):
        put_state(generator, state)


def _own_generators() -> list[Any]:
    """Return the generators that the script has made, where a data set of this worker may reach them."""
    return list(generators_of(_worker().dataset))


def generators_of(dataset: object) -> Iterator[object]:
    """Yield the generators that a data set holds, or the modules whose functions it calls; each once.

    >>> from torch.utils.data import Subset
    >>> class Noisy:
    ...     def __init__(self): self.own = torch.Generator()
    >>> [type(one).__name__ for one in generators_of(Subset(Noisy(), [0]))]
    ['Generator']
    """
    seen: set[int] = set()
    yield from _within(dataset, seen, 0)


def _within(value: object, seen: set[int], depth: int) -> Iterator[object]:
    if depth > _MOST_DEPTH or id(value) in seen or isinstance(value, (torch.Tensor, type, str, bytes, int, float)):
        return
    seen.add(id(value))
    if is_generator(value):
        yield value
        return
    for part in _parts(value, seen):
        yield from _within(part, seen, depth + 1)


def _parts(value: object, seen: set[int]) -> list[object]:
    """Return what an object may draw from: entries, attributes, and the global names of its functions."""
    if isinstance(value, (list, tuple)):
        return list(value) if len(value) <= _MOST_ENTRIES else []
    if isinstance(value, dict):
        return list(value.values()) if len(value) <= _MOST_ENTRIES else []
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, FunctionType):
        cells = [one.cell_contents for one in value.__closure__ or () if one.cell_contents is not value]
        return [*cells, *(value.__defaults__ or ()), *_globals_of(value.__module__, seen)]
    attributes = getattr(value, "__dict__", None)
    if not isinstance(attributes, dict):
        return []
    return [*attributes.values(), *_globals_of(type(value).__module__, seen)]


def _globals_of(module: str, seen: set[int]) -> list[object]:
    """Return the generators among the global names of a module of the script."""
    names = getattr(sys.modules.get(module), "__dict__", {})
    if id(names) in seen or module.partition(".")[0] in ("torch", "numpy", "builtins"):
        return []
    seen.add(id(names))
    return [one for one in list(names.values()) if is_generator(one)]
