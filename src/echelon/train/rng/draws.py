"""Random numbers inside of models as on one device: each rank draws those of the whole batch and keeps its rows.

While a model computes its rows, PyTorch's functions that draw are replaced: the shapes of their arguments show the rows
that the numbers are for. All ranks draw the same numbers from their common generator, which ends in the state that it
has on one device. Numbers without a row for each sample (a coin for a layer, say) are drawn unchanged on all ranks.

Lines of a script that draw inside of a model: whether they draw for each sample, or the same for all.

A size alone does not tell: 8 numbers may be a row for each of 8 samples, or a vector of 8 features. So a model is
computed for parts of its rows (`check/row_trial`), and the sizes that each line asks for show what they follow.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..wire import lines
from ..wire.world import World
from . import states as random_states
from .generators import Generators

Shape = tuple[int, ...]


class DrawLine(NamedTuple):
    line: lines.SourceLine
    num_dims: int


class Kind(NamedTuple):
    """How many numbers a line draws: some for each sample, along a dim, or (0 for each) as many for any batch."""

    for_each: int
    dim: int = 0


class DrawSites:
    def __init__(self) -> None:
        self.known: dict[DrawLine, Kind] = {}
        self._heard: list[tuple[DrawLine, Shape]] | None = None

    @property
    def is_listening(self) -> bool:
        return self._heard is not None

    def listen(self) -> None:
        self._heard = []

    def heard(self) -> list[tuple[DrawLine, Shape]]:
        heard, self._heard = self._heard or [], None
        return heard

    def kind_of(self, shape: Sequence[int]) -> Kind | None:
        """Return what is known of the line that draws now; note it, if someone listens."""
        if self._heard is None and not self.known:
            return None
        site = DrawLine(lines.of_script(), len(shape))
        if self._heard is not None:
            self._heard.append((site, tuple(shape)))
        return self.known.get(site)

    def learn(self, every: Sequence[list[tuple[DrawLine, Shape]]], sizes: Sequence[int]) -> "DrawLine | None":
        """Learn from the draws for batches of several sizes; return the first line that follows no rule."""
        for site in dict.fromkeys(site for heard in every for site, _ in heard):
            shapes = [[shape for one, shape in heard if one == site] for heard in every]
            kinds = {_kind(of_sizes, sizes) for of_sizes in zip(*shapes, strict=False)}
            if len({len(one) for one in shapes}) > 1 or len(kinds) != 1 or None in kinds:
                return site
            self.known[site] = next(kind for kind in kinds if kind is not None)
        return None


def _kind(shapes: Sequence[Shape], sizes: Sequence[int]) -> Kind | None:
    if len(set(shapes)) == 1:
        return Kind(0)
    changing = [dim for dim, of_dim in enumerate(zip(*shapes, strict=False)) if len(set(of_dim)) > 1]
    for_each = shapes[0][changing[0]] // sizes[0]
    follows: Any = all(shape[changing[0]] == for_each * size for shape, size in zip(shapes, sizes, strict=False))
    return Kind(for_each, changing[0]) if follows and len(changing) == 1 else None


MOST_NUMBERS = 500_000_000
"""The most numbers that a rank draws for all ranks in one call: a gigabyte of 16-bit numbers."""
EVERY_STEP, EACH_OF = 16, 16  # ranks compare states in each of the first steps, then in one step of EACH_OF
_STOPPED = -1  # sent in place of a state by a rank that draws its own numbers


class RowsPlace(NamedTuple):
    """The place of this rank's rows in a whole tensor."""

    world: World
    rows: tuple[int, ...]
    """The number of rows of each rank."""
    dim: int = 0
    for_each: int = 1
    """The number of rows for each sample."""

    @property
    def num_own(self) -> int:
        """The number of this rank's rows; a rank with 0 rows holds a placeholder row."""
        return self.rows[self.world.rank]

    def is_whole_of(self, leads: Sequence[Any]) -> bool:
        """Say whether the first dim has one row for each sample of a batch."""
        return self.dim == 0 and any(tuple(lead.rows) == self.rows for lead in leads)

    def whole(self, shape: Sequence[int]) -> list[int]:
        return [sum(self.rows) if dim == self.dim else size for dim, size in enumerate(shape)]

    def cut(self, whole: torch.Tensor) -> torch.Tensor:
        first = sum(self.rows[: self.world.rank]) if self.num_own else 0
        return whole.narrow(self.dim, first, self.num_own or self.for_each).clone()

    def put(self, own: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        if self.num_own:
            first = sum(self.rows[: self.world.rank])
            whole.narrow(self.dim, first, self.num_own).copy_(own.detach())
        return whole


class Draws:
    """The state of draws inside of models: whether they are those of one device, and for which rows."""

    def __init__(
        self, world: World, generators: Generators, say: Callable[[str], None], *, is_on: bool, takes_all: bool
    ) -> None:
        self.is_on = is_on
        self._is_compared = is_on
        """Whether the ranks compare their states; a rank that has stopped goes on until all ranks know of it."""
        self.takes_all = takes_all
        """Whether the functions with a high cost draw the numbers of one device too (--same-random)."""
        self.guesses: set[str] = set()
        """Numbers drawn without known rows; they differ from one device if their shape depends on the rank's rows."""
        self._world = world
        self._generators = generators
        self._say = say
        self._said: set[str] = set()
        self._leads: list[object] | None = None
        self.is_inside = False
        """Whether a model computes now."""
        self.put_back: Callable[[], AbstractContextManager[None]] = nullcontext
        """A context manager that puts PyTorch's own functions back for a while."""
        self.is_compared = False
        """Whether this step is compared with one device: then kernels with their own draws drop nothing."""
        self.sites = DrawSites()
        self.num_otherwise = 0
        """How often a model that is tried drew numbers that cannot be those of one device."""
        self._is_tried = False
        self._memory: dict[object, torch.Tensor] = {}
        self._num_steps = 0

    @contextmanager
    def of(self, leads: list[Any] | None) -> Iterator[None]:
        """Compute a model for this rank's rows of a batch; None stands for no known rows."""
        before = (self._leads, self.is_inside)
        self._leads, self.is_inside = leads, True
        kept = random_states.keep() if self.is_compared and leads else None
        try:
            if self.is_on:
                yield
                if kept is not None and not random_states.is_same(kept, random_states.keep()):
                    self.guesses.add("numbers with Python's random or numpy")
            else:
                with self._generators.in_own():
                    yield
        finally:
            self._leads, self.is_inside = before

    @contextmanager
    def tried(self, leads: list[object]) -> Iterator[None]:
        """Compute a model once more for these rows; whoever calls this restores the generators."""
        before = (self._leads, self.is_inside, self.is_compared)
        self._is_tried = True
        if self.is_on:
            self._leads, self.is_inside, self.is_compared = leads, True, True
        try:
            yield
        finally:
            self._is_tried = False
            self._leads, self.is_inside, self.is_compared = before

    @property
    def leads(self) -> list[Any] | None:
        """The rows that a model computes now; None where draws are not those of one device."""
        return self._leads if self.is_on else None

    def stop(self, why: str) -> None:
        if self.is_on:
            self.is_on = False
            self.say_other(why)

    def progress(self) -> list[Any]:
        """Return as plain data how far the ranks have come together, for a checkpoint."""
        return [self.is_on, self._is_compared, self._num_steps] if self._world.size > 1 else []

    def go_on(self, progress: Sequence[Any]) -> None:
        """Draw as the run did that has come so far."""
        if progress and self._world.size > 1:
            is_on, is_compared, self._num_steps = progress
            self.is_on, self._is_compared = self.is_on and is_on, self._is_compared and is_compared

    def continue_as_one_device(self) -> None:
        self._world = World(0, 1, self._world.device)

    def say_other(self, purpose: str) -> None:
        """Say, once for each purpose, that ranks draw their own numbers for it."""
        if purpose not in self._said:
            self._said.add(purpose)
            self._say(f"random numbers: each rank draws its own for {purpose}")

    @contextmanager
    def own_stream(self, purpose: str) -> Iterator[None]:
        """Draw numbers that cannot be those of one device from this rank's own stream."""
        if not self.is_on or not self.is_inside:
            yield
            return
        if self._is_tried:
            self.num_otherwise += 1
        else:
            self.say_other(purpose)
        with self._generators.in_own():
            yield

    def place(self, shape: Sequence[int], *, is_made: bool = False, is_sure: bool = False) -> RowsPlace | None:
        """Return the place of the rows in a shape.

        `is_made`: a new tensor has this shape, so it has no rows of tokens. `is_sure`: a computed tensor has it.
        """
        leads = self.leads or ()
        kind = self.sites.kind_of(shape) if leads else None
        if kind is not None and not kind.for_each:
            return None
        places = list(dict.fromkeys(one for lead in leads for one in _places(lead, shape, is_made=is_made)))
        known = _place_by_kind(kind, self.leads, shape) if kind is not None else None
        if known is not None:
            places = [known]
        is_certain = len(places) == 1 and (is_sure or known is not None or places[0].is_whole_of(leads))
        if leads and not is_certain and max(shape, default=0) > 1 and not self.sites.is_listening:
            self.guesses.add(f"numbers for a tensor of shape {tuple(shape)}")
        if places and math.prod(places[0].whole(shape)) > MOST_NUMBERS:
            self.guesses.add(f"numbers for a tensor of shape {tuple(shape)}")
            self.stop(f"models, because a batch draws more than {MOST_NUMBERS // 10**6} million numbers in one call")
            return None
        return places[0] if places else None

    def like_whole(self, tensor: torch.Tensor, place: RowsPlace) -> torch.Tensor:
        """Return an empty tensor for all rows with the rank's memory order, which is the order of the draws.

        The next call uses the same memory again, because an allocation takes longer than the draws.
        """
        order, shape = _order(tensor, place), place.whole(tensor.shape)
        key, size = (tensor.dtype, tensor.device), math.prod(shape)
        memory = self._memory.get(key)
        if memory is None or memory.numel() < size:
            with torch.inference_mode(False):
                memory = self._memory[key] = torch.empty(size, dtype=tensor.dtype, device=tensor.device)
        empty = memory[:size].view([shape[dim] for dim in order])
        return empty.permute([order.index(dim) for dim in range(tensor.dim())])

    def compare(self, _: torch.optim.Optimizer) -> None:
        """Compare the common stream of all ranks; if it differs, or a rank has left it, each rank draws its own."""
        self._num_steps += 1
        is_left_out = self._num_steps > EVERY_STEP and self._num_steps % EACH_OF
        if not self._is_compared or self._world.size == 1 or is_left_out or not dist.is_initialized():
            return
        state = torch.tensor([self._generators.digest() if self.is_on else _STOPPED])
        states = [torch.empty_like(state) for _ in range(self._world.size)]
        dist.all_gather(states, state)
        if all(int(other) == _STOPPED for other in states):
            self._is_compared = False
        elif any(not torch.equal(other, states[0]) for other in states):
            self._is_compared = False
            self.stop("models, because some ranks draw for samples that they select")
            self._generators.follow(self._world)


def _places(lead: Any, shape: Sequence[int], *, is_made: bool) -> list[RowsPlace]:
    """Return possible places of the rows in a shape, the likeliest first; a first dim of that size leaves no doubt."""
    own = max(lead.rows[lead.world.rank], 1)
    if shape and shape[0] == own:
        return [RowsPlace(lead.world, tuple(lead.rows))]
    if is_made or len(shape) < 2:
        return []
    places = []
    if shape[0] and shape[0] % own == 0:  # rows of tokens, or of heads
        places.append(RowsPlace(lead.world, tuple(size * (shape[0] // own) for size in lead.rows)))
    dims = [dim for dim in range(1, len(shape)) if shape[dim] == own > 1]
    if dims:
        is_time_first = dims[0] == 1 and shape[0] in lead.local.shape[1:]
        places.insert(0 if is_time_first else len(places), RowsPlace(lead.world, tuple(lead.rows), dims[0]))
    return places


def _place_by_kind(kind: Kind, leads: Any, shape: Sequence[int]) -> RowsPlace | None:
    """Return the place that a line's earlier draws have shown; None for a shape of another kind."""
    lead = leads[0]
    if shape[kind.dim] != max(lead.rows[lead.world.rank], 1) * kind.for_each:
        return None
    return RowsPlace(lead.world, tuple(size * kind.for_each for size in lead.rows), kind.dim, kind.for_each)


def _order(tensor: torch.Tensor, place: RowsPlace) -> list[int]:
    stride = tensor.stride()
    if 0 in stride:  # expanded: torch.empty_like() shows the memory order of a tensor that is made like it
        stride = torch.empty_like(torch.empty_strided(place.whole(tensor.shape), stride, device="meta")).stride()
    rows = place.dim if place.num_own <= 1 else -1  # a single row has the stride of another dim, which is the inner one
    return sorted(range(tensor.dim()), key=lambda dim: (stride[dim], dim != rows), reverse=True)
