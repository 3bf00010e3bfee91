"""Passes over loaders: recorded batch by batch, repeated without loading, and continued in the middle."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch.utils.data import DataLoader

from .. import patches
from ..rng import generators
from ..rng import states as own_generators
from ..rng.workers_draws import WorkersDraws
from ..scaling_error import ScalingError
from ..training import Training
from ..wire import plain_data
from . import cycles, same_script
from .tape import BATCH, END, Journal

_WHY = "The batches of a loop are counted, so that it can continue in the middle of an epoch."
_NO_STATE: list[Any] = []


class Passes:
    def __init__(self, tape: Journal, run: Training, at_request: Callable[[], None]) -> None:
        self.tape = tape
        self.run = run
        self.at_request = at_request
        """Is called when a loop asks for a batch to train on, before it gets the batch."""
        self.begin: Callable[[Any], Any] = DataLoader.__iter__
        """Begins the loader's own pass."""
        self.asking: Pass | None = None
        """The pass that a loop asked last for a batch to train on."""
        self.held_by: Callable[[Any], Any] = lambda _loader: {}
        """Returns what the sampler of a loader holds."""
        self.put_held: Callable[[Any, Any], None] = lambda _loader, _held: None
        """Lets it hold something else."""
        self.num_begun = 0
        """The number of passes that have begun."""
        self._open: weakref.WeakValueDictionary[int, Pass] = weakref.WeakValueDictionary()
        self.begun: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """Each loader whose pass has begun, with the number of its latest pass."""
        self.started: weakref.WeakSet[Any] = weakref.WeakSet()
        """The loaders that have loaded in this process."""
        self.workers_draws: weakref.WeakKeyDictionary[Any, WorkersDraws] = weakref.WeakKeyDictionary()
        run.workers_draws = self.workers_draws

    def install(self) -> None:
        original = self.begin = DataLoader.__iter__

        @wraps(original)
        def begin(loader: Any) -> Any:
            if not (self.tape.is_recording or self.tape.is_playing):
                return original(loader)
            self.num_begun += 1
            made = Pass(self, loader, self.num_begun, lambda: original(loader))
            self._open[self.num_begun] = made
            return made

        patches.replace(DataLoader, "__iter__", begin, why=_WHY)

    @property
    def is_training(self) -> bool:
        """Whether a loop over a loader trains now: its request for the next batch ends a step."""
        return any(one.trains for one in self._open.values())

    @property
    def open(self) -> list["Pass"]:
        return [one for _, one in sorted(self._open.items())]

    def put_place(self, num_begun: int, open_now: "list[Pass]", begun: list[tuple[Any, int]]) -> None:
        """Be where a loop was that is not repeated; all passes are at their places."""
        self.num_begun = num_begun
        self._open.clear()
        self._open.update({one.number: one for one in open_now})
        self.begun.clear()
        self.begun.update(begun)

    def repeated(self, loader: Any, place: list[Any]) -> "Pass":
        """Return a pass of a repeated loop, which is at a place."""
        made = Pass(self, loader, place[0], lambda: self.begin(loader))
        made.put_place(place, loader)
        return made

    def end(self, ended: "Pass") -> None:
        ended.trains = False
        self._open.pop(ended.number, None)

    def positions(self) -> dict[str, Any]:
        return {str(number): one.position_now() for number, one in sorted(self._open.items())}

    def draws_of_workers(self) -> dict[str, Any]:
        """Return what the workers of this rank have drawn: of open passes, and of workers that live on."""
        return {
            str(number): [draws.num_workers, draws.states]
            for loader, number in self.begun.items()
            if (draws := self.workers_draws.get(loader)) is not None
            and (number in self._open or getattr(loader, "persistent_workers", False))
        }

    def go_on(self, saved: dict[str, Any], draws: dict[str, Any]) -> bool:
        """Continue the open passes where the checkpoint left them; return whether all workers draw as they would."""
        are_same = [self._go_on_with_draws(loader, number, draws) for loader, number in list(self.begun.items())]
        for number, one in sorted(self._open.items()):
            one.go_on(saved.get(str(number)))
            are_same.append(one.has_same_workers)
        return all(are_same)

    def settle(self) -> None:
        """Let samplers hold what follows from the positions, when all generators have their states."""
        for one in self._open.values():
            one.settle()

    def _go_on_with_draws(self, loader: object, number: int, saved: dict[str, Any]) -> bool:
        is_open, lives_on = number in self._open, getattr(loader, "persistent_workers", False)
        draws = self.workers_draws.get(loader)
        if draws is None or not (is_open or lives_on):
            return True
        num_workers, states = saved.get(str(number), (0, {}))
        if num_workers == draws.num_workers:
            draws.go_on(states, self._open[number].num_taken if is_open else 0)
        return bool(num_workers == draws.num_workers)

    def form_of(self, batch: object) -> list[Any]:
        try:
            return self.tape.forms.note(batch)
        except ScalingError as error:
            raise ScalingError(
                "--checkpoint-every cannot repeat a batch with {}".format(str(error).partition("\n")[0]),
                "let the collate function return tensors, numbers and text",
            ) from None


class Pass:
    def __init__(self, passes: Passes, loader: Any, number: int, begin: Callable[[], Any]) -> None:
        self._passes = passes
        self.loader = loader
        self.number = number
        """The number of passes that had begun with this one."""
        self._begin = begin
        self.num_taken = 0
        """The number of batches that the loop has got."""
        self.trains = False
        """Whether its latest batch was for training."""
        self._note_earlier(is_later=loader in passes.begun)
        passes.begun[loader] = number
        if getattr(loader, "num_workers", 0) and loader not in passes.workers_draws:
            passes.workers_draws[loader] = WorkersDraws(loader.num_workers)
        self._at_begin: list[Any] = _NO_STATE
        self._own_at_begin: list[Any] = []
        """The states of the loader's own generators."""
        self._at_first: list[Any] = _NO_STATE
        self._held_at_begin: Any = {}
        self._held_at_end: Any = {}
        self._inner: Any = None
        if passes.tape.is_recording:
            self._at_begin = generators.portable_state()
            self._own_at_begin = [own_generators.state_of(one) for one in own_generators.of_loader(loader)]
            passes.started.add(loader)
            with passes.tape.paused(), self._seed_of_workers_apart():
                self._held_at_begin = passes.held_by(loader)
                self._inner = begin()

    def _note_earlier(self, *, is_later: bool) -> None:
        self._is_later = is_later
        is_of_earlier = is_later and self.loader not in self._passes.started
        self._has_workers = is_of_earlier and bool(getattr(self.loader, "persistent_workers", False))
        """Whether workers of an earlier process were there before this pass."""

    @property
    def has_same_workers(self) -> bool:
        """Whether workers have the states of those of an earlier process; a stream's workers begin anew."""
        return not self._has_workers or getattr(self._inner, "sampler", None) is not None

    def place(self) -> list[Any]:
        return [self.number, self.num_taken, self.trains, self._is_later]

    def put_place(self, place: list[Any], loader: Any) -> None:
        """Be at the place of another pass, while the loop is repeated."""
        self.number, self.num_taken, self.trains, is_later = place
        self.loader, self._begin = loader, lambda: self._passes.begin(loader)
        self._note_earlier(is_later=is_later)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self.loader) if self._inner is None else len(self._inner)

    def __next__(self) -> Any:
        passes, tape = self._passes, self._passes.tape
        if not tape.is_here:
            return self._next_inner()
        self.trains = torch.is_grad_enabled()
        if self.trains:
            passes.asking = self
            passes.at_request()
        if tape.is_playing:
            return self._play()
        if not self._at_first:
            self._at_first = generators.portable_state()
        try:
            with tape.paused():
                batch = self._next_inner()
        except StopIteration:
            if tape.is_recording:
                tape.keep(END, None)
            passes.end(self)
            raise
        self._count(batch)
        if tape.is_recording:
            tape.keep(BATCH, passes.form_of(batch))
        return batch

    def _next_inner(self) -> Any:
        if self._inner is None:
            self._inner = self._begin()
        return next(self._inner)

    def _play(self) -> Any:
        tape = self._passes.tape
        if tape.next_kind() == END:
            tape.play(END)
            self._passes.end(self)
            raise StopIteration
        return self._count(tape.forms.hollow(tape.play(BATCH)))

    def _count(self, batch: Any) -> Any:
        self.num_taken += 1
        cycles.mark(batch, self.number, self.num_taken)
        return batch

    def position_now(self) -> dict[str, Any]:
        sampler = getattr(self._inner, "sampler", None)
        return {
            "taken": self.num_taken,
            "at_begin": self._at_begin,
            "own_at_begin": self._own_at_begin,
            "at_first": self._at_first,
            "key": getattr(sampler, "key", 0),
            "data": self._data(),
            "held": self._held_at_begin if self._held_at_begin and self._is_other(self._held()) else {},
            "samples": getattr(sampler, "mark", 0),
        }

    def _held(self) -> Any:
        return self._passes.held_by(self.loader)

    def _is_other(self, held: Any) -> bool:
        return plain_data.encode(held) != plain_data.encode(self._held_at_begin)

    def _data(self) -> dict[str, Any]:
        batch = getattr(self.loader, "batch_size", None) or getattr(self.loader.batch_sampler, "batch_size", None)
        try:
            return {"batch": batch, "samples": len(self.loader.dataset)}
        except TypeError:
            return {"batch": batch}  # a stream

    def go_on(self, saved: Any) -> None:
        """Begin the loader's own pass with the random numbers that it began with, behind the batches already taken."""
        if saved is None or saved["taken"] != self.num_taken:
            raise ScalingError(
                f"the checkpoint has no pass {self.number} over a loader with {self.num_taken} batches",
                "start the script without --resume",
            )
        same_script.refuse_other_data(self.num_taken, saved.get("data", {}), self._data())
        self._at_begin, self._at_first = saved["at_begin"], saved["at_first"]
        self._own_at_begin = saved["own_at_begin"]
        run = self._passes.run
        self._passes.started.add(self.loader)
        with self._passes.tape.paused():
            generators.put_portable_state(self._at_begin)
            for one, state in zip(own_generators.of_loader(self.loader), self._own_at_begin, strict=False):
                own_generators.put_state(one, state)
            run.resumed_pass = (self.num_taken, saved["key"])
            held = self._begin_with(saved.get("held", {}))
            with self._seed_of_workers_apart():
                self._inner = self._begin()
            if self._at_first:
                generators.put_portable_state(self._at_first)
            sampler = getattr(self._inner, "sampler", None)
            if sampler is not None and run.resumed_pass[0]:  # no worker has asked for a batch yet
                sampler.leave_out_taken()
            remaining, run.resumed_pass = run.resumed_pass[0], (0, 0)
            for _ in range(remaining):  # a stream, or a loader that no rank shares: it is read again
                next(self._inner)
            self._end_with(held)
            if sampler is not None and sampler.mark != saved.get("samples", 0):
                raise ScalingError(
                    f"{type(self.loader.batch_sampler).__name__} gives other samples than before the checkpoint: what "
                    "the script has changed in it in the middle of an epoch cannot be repeated",
                    "change a sampler between two epochs; or start the script without --resume",
                )

    def _begin_with(self, held: Any) -> Any:
        """Let the sampler hold what it held when the pass began; return what it holds now."""
        self._held_at_begin = held or self._held()
        if not held:
            return {}
        now = self._held()
        self._passes.put_held(self.loader, held)
        return now

    def _end_with(self, held: Any) -> None:
        """Note what the sampler has to hold; with workers it may have been asked further ahead before."""
        self._held_at_end = held
        if held and self.loader.num_workers:
            now = self._held()
            if self._is_other(now):
                self._held_at_end = now

    def settle(self) -> None:
        if self._held_at_end:
            self._passes.put_held(self.loader, self._held_at_end)

    @contextmanager
    def _seed_of_workers_apart(self) -> Iterator[None]:
        """Draw no seed for new workers from the loader's generator, where this pass had those of an earlier one."""
        if not self._has_workers:
            yield
            return
        own = self.loader.generator
        self.loader.generator = torch.Generator()
        try:
            yield
        finally:
            self.loader.generator = own
