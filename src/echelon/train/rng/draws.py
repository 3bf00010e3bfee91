"""Random numbers inside of models as on one device: the whole batch's are drawn, and cut to this rank's rows.

While a model computes its rows, PyTorch's functions that draw are replaced: what they are given says whose rows the
numbers are for. All ranks draw the same from the generator that they share, which ends where it would on one device.
What has no row for each sample (a coin for a layer, say) is drawn as it stands, by all ranks alike.
"""

import math
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist

from ..world import World
from . import states as random_states
from .generators import Generators

MOST_NUMBERS = 500_000_000
"""That a rank draws for others at once; a gigabyte, in 16 bits."""
EVERY_STEP, EACH_OF = 16, 16  # how long states are compared in every step, and later in each of so many
_STOPPED = -1  # in place of a state: this rank draws for itself


class Place(NamedTuple):
    """Where this rank's rows are in a whole tensor."""

    world: World
    rows: Tuple[int, ...]
    """How many rows each rank has."""
    dim: int = 0

    @property
    def num_own(self) -> int:
        """How many this rank has; where it has none, one stands in."""
        return self.rows[self.world.rank]

    def is_whole_of(self, leads: Sequence[Any]) -> bool:
        """Say whether there is one row for each sample of a batch, in the first dim."""
        return self.dim == 0 and any(tuple(lead.rows) == self.rows for lead in leads)

    def whole(self, shape: Sequence[int]) -> List[int]:
        """Return the shape of the whole."""
        return [sum(self.rows) if dim == self.dim else size for dim, size in enumerate(shape)]

    def cut(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's rows of a whole."""
        first = sum(self.rows[: self.world.rank]) if self.num_own else 0
        return whole.narrow(self.dim, first, self.num_own or 1).clone()

    def put(self, own: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """Put this rank's rows into a whole, and return it."""
        if self.num_own:
            first = sum(self.rows[: self.world.rank])
            whole.narrow(self.dim, first, self.num_own).copy_(own.detach())
        return whole


class Draws:
    """Whether random numbers inside of models are those of one device, and whose rows are computed now."""

    def __init__(
        self, world: World, generators: Generators, say: Callable[[str], None], *, is_on: bool, takes_all: bool
    ) -> None:
        self.is_on = is_on
        self._is_compared = is_on
        """Whether the ranks compare their states: also a rank that has stopped, until all know that it has."""
        self.takes_all = takes_all
        """Whether what costs more is drawn as on one device too."""
        self.guesses: Set[str] = set()
        """What was drawn without rows: other than on one device where its shape follows from the rank's rows."""
        self._world = world
        self._generators = generators
        self._say = say
        self._said: Set[str] = set()
        self._leads: Optional[List[Any]] = None
        self.is_inside = False
        """Whether a model is computed."""
        self.put_back: Callable[[], ContextManager[None]] = nullcontext
        """Lets PyTorch have its own functions for a while."""
        self.is_compared = False
        """Whether this step is compared with one device: then kernels that draw by themselves drop nothing."""
        self._memory: Dict[Any, torch.Tensor] = {}
        self._num_steps = 0

    @contextmanager
    def of(self, leads: Optional[List[Any]]) -> Iterator[None]:
        """Compute a model for rows that this rank has of a batch; None: for no rank's rows."""
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

    @property
    def leads(self) -> Optional[List[Any]]:
        """The rows that a model is computed for now, where numbers are drawn as on one device."""
        return self._leads if self.is_on else None

    def stop(self, why: str) -> None:
        """From now on each rank draws for itself."""
        if self.is_on:
            self.is_on = False
            self.say_other(why)

    def become_alone(self) -> None:
        """Go on as one device."""
        self._world = World(0, 1, self._world.device)

    def say_other(self, purpose: str) -> None:
        """Say, once, what is drawn otherwise than on one device."""
        if purpose not in self._said:
            self._said.add(purpose)
            self._say("random numbers: each rank draws its own for %s" % purpose)

    @contextmanager
    def otherwise(self, purpose: str) -> Iterator[None]:
        """Draw what cannot be that of one device: from this rank's own stream."""
        if not self.is_on or not self.is_inside:
            yield
            return
        self.say_other(purpose)
        with self._generators.in_own():
            yield

    def place(self, shape: Sequence[int], *, is_made: bool = False, is_sure: bool = False) -> Optional[Place]:
        """Return where rows are in a shape.

        `is_made`: of a tensor that is made anew, which has no rows of tokens; `is_sure`: of one that was computed.
        """
        places = list(dict.fromkeys(one for lead in self.leads or () for one in _places(lead, shape, is_made=is_made)))
        is_certain = len(places) == 1 and (is_sure or places[0].is_whole_of(self.leads or ()))
        if self.leads and not is_certain and max(shape, default=0) > 1:
            self.guesses.add("numbers for a tensor of shape %s" % (tuple(shape),))
        if places and math.prod(places[0].whole(shape)) > MOST_NUMBERS:
            self.guesses.add("numbers for a tensor of shape %s" % (tuple(shape),))
            self.stop(
                "models, because a batch draws more than %d million numbers in one call" % (MOST_NUMBERS // 10**6)
            )
            return None
        return places[0] if places else None

    def like_whole(self, tensor: torch.Tensor, place: Place) -> torch.Tensor:
        """Return an empty tensor for all rows, in the order of memory that a rank's has: so numbers are drawn.

        Its memory is used again by the next, for to get as much anew takes longer than to draw.
        """
        order, shape = _order(tensor, place), place.whole(tensor.shape)
        key, size = (tensor.dtype, tensor.device), math.prod(shape)
        memory = self._memory.get(key)
        if memory is None or memory.numel() < size:
            with torch.inference_mode(False):
                memory = self._memory[key] = torch.empty(size, dtype=tensor.dtype, device=tensor.device)
        empty = memory[:size].view([shape[dim] for dim in order])
        return empty.permute([order.index(dim) for dim in range(tensor.dim())])

    def compare(self) -> None:
        """Go on with each rank's own stream once the common stream differs between ranks, or a rank has left it."""
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


def _places(lead: Any, shape: Sequence[int], *, is_made: bool) -> List[Place]:
    """Return where rows may be in a shape, the likeliest first; the first dim that has as many leaves no doubt."""
    own = max(lead.rows[lead.world.rank], 1)
    if shape and shape[0] == own:
        return [Place(lead.world, tuple(lead.rows))]
    if is_made or len(shape) < 2:
        return []
    places = []
    if shape[0] and shape[0] % own == 0:  # rows of tokens, or of heads
        places.append(Place(lead.world, tuple(size * (shape[0] // own) for size in lead.rows)))
    dims = [dim for dim in range(1, len(shape)) if shape[dim] == own > 1]
    if dims:
        is_time_first = dims[0] == 1 and shape[0] in lead.local.shape[1:]
        places.insert(0 if is_time_first else len(places), Place(lead.world, tuple(lead.rows), dims[0]))
    return places


def _order(tensor: torch.Tensor, place: Place) -> List[int]:
    """Return the dims of a tensor from the outermost in memory to the innermost."""
    stride = tensor.stride()
    if 0 in stride:  # expanded: PyTorch says in which order what is made like it lies
        stride = torch.empty_like(torch.empty_strided(place.whole(tensor.shape), stride, device="meta")).stride()
    rows = place.dim if place.num_own <= 1 else -1  # of dims with the same stride a single row lies in the other
    return sorted(range(tensor.dim()), key=lambda dim: (stride[dim], dim != rows), reverse=True)
