"""One call of a model, computed for all rows of this rank and for two parts of them, without side effects.

All three draw the numbers that one device draws for these rows, from the same states of all generators. A rank with a
single row, and a model that fails with fewer rows than this rank has, get as many again: altered copies.
"""

import gc
import random
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from ...orders.scale import ScaleOptions
from ...pytorch import internals
from .. import gradient_hooks
from ..base_parallelism import Parallelism
from ..global_tensors import kept_tensors
from ..global_tensors.arguments import Entries
from ..global_tensors.model_calls import Owner
from ..global_tensors.returned_numbers import leaves_of
from ..global_tensors.tensors import Sharded, map_tensors
from ..rng import states as own_generators
from ..wire.world import alone
from . import own_backward
from .isolation import Copies, detached, fresh, uncompiled, without_chance
from .part_ways import Sizes

_ACT = "the trial of a model's rows"


class Checked(Owner, Protocol):
    """The training that is compared with one device."""

    options: ScaleOptions
    parallelism: Parallelism

    def say(self, text: str) -> None:
        """Talk to the person."""


class TrainsItselfError(BaseException):
    """A model that is tried trains: it is a part of the script's loop, and no model."""


class Computed(NamedTuple):
    """What one computation of a call left."""

    outputs: Any
    """Its outputs, detached."""
    buffers: dict[str, torch.Tensor]
    """The buffers that it changed."""
    states: list[int]
    """Checksums of the states of all generators after it."""
    attributes: dict[kept_tensors.AttributePlace, list[torch.Tensor]]
    """The tensors that it has put into attributes, detached."""
    carried: list[str]
    """The names of what it has changed besides, which its next call may use."""


class PartRuns:
    """The three computations of one call."""

    def __init__(self, run: Checked, original: Callable[..., object], module: nn.Module) -> None:
        self._run, self._original, self._module = run, original, module
        self._copies = Copies(module)
        self._inputs: list[tuple[object, Sharded]] = []
        self._entries: Entries
        self._own: Any = None
        self._lead: Sharded
        self._generators: list[object] = []
        self.sizes = Sizes(1, 1)
        self.need_gradients: set[int] = set()
        """The places of the outputs that have a gradient."""
        self.own_backward: list[str] = []
        """What the script's own code does in a backward pass of the model."""

    @property
    def is_spread(self) -> bool:
        """Whether a weight is divided among ranks, so that one rank cannot compute alone."""
        return self._copies.is_spread

    def take(self, value: tuple[object, object], lead: Sharded, first: torch.Tensor | None) -> None:
        """Take the arguments of a call; other ranks may have parts of them, so all ranks must call this."""
        entries = Entries(self._module, lead, first)
        own = entries.enter(*map_tensors(value, detached))
        num_rows = lead.rows[lead.world.rank]
        self._entries, self._own, self._lead = entries, own, lead
        self._generators = _of_script(self._module)
        if num_rows < 2:
            self.double()
            return
        first_rows = max(min(2, num_rows // 2), num_rows // 3)  # one row alone has no deviation, and no pairs
        self.sizes = Sizes(first_rows, num_rows - first_rows)
        self._inputs = self._cut(own)

    def double(self) -> None:
        """Take twice as many rows: each of the two parts has as many as this rank computes anyway."""
        lead = self._lead
        num_rows = max(1, lead.rows[lead.world.rank])  # a rank without samples has a placeholder
        self._own, self._lead = self._entries.doubled(self._own), _doubled_lead(lead, num_rows)
        self.sizes = Sizes(num_rows, num_rows)
        self._inputs = self._cut(self._own)

    def _cut(self, own: Any) -> list[tuple[object, Sharded]]:
        sizes = self.sizes
        return [
            (own if size == sizes.all_rows else self._entries.some(own, at, size), _lead_of_part(self._lead, at, size))
            for at, size in ((0, sizes.all_rows), (0, sizes.first), (sizes.first, sizes.rest))
        ]

    @contextmanager
    def of_rows_alike(self) -> Iterator[None]:
        """Compute with rows that are nearly equal: margins and thresholds between them take another side."""
        before = self._inputs
        self._inputs = self._cut(self._entries.alike(self._own))
        try:
            yield
        finally:
            self._inputs = before

    def compute(
        self,
        place: int,
        mode: AbstractContextManager[object] | None = None,
        *,
        num_calls: int = 1,
        look: Callable[[Any], None] = lambda _: None,
    ) -> Computed:
        """Compute all rows (0) or one of the parts (1, 2); the last of several calls counts.

        `look` gets the outputs with their graph.
        """
        value, lead = self._inputs[place]
        args, kwargs = map_tensors(value, fresh)
        run = self._run
        with ExitStack() as stack:
            stack.enter_context(alone(_ACT))
            stack.enter_context(run.generators.kept())
            stack.enter_context(_put_back(self._generators))
            stack.enter_context(warnings.catch_warnings())
            stack.enter_context(without_chance(are_statistics_whole=False))
            changed = stack.enter_context(self._copies.in_place())
            stack.enter_context(uncompiled(run.calls.is_compiled))
            stack.enter_context(run.calls.once_more(lead))
            stack.enter_context(run.draws.tried([lead]))
            warnings.simplefilter("ignore")
            versions = {name: internals.version(one) for name, one in _buffers(self._module).items()}
            hooks: list[str] = []
            with mode or nullcontext(), own_backward.hooks_noted(hooks):
                for _ in range(num_calls):
                    outputs = self._original(self._module, *args, **kwargs)
            look(outputs)
            buffers = {
                name: one.detach().clone()
                for name, one in _buffers(self._module).items()
                if versions.get(name) != internals.version(one)
            }
            states = self.states()
            carried = changed()
            held = {at: [one.detach() for one in tensors] for at, tensors in kept_tensors.of(self._module).items()}
        if not place:
            self.own_backward = [*own_backward.functions_of(outputs), *hooks]
            self.need_gradients = {
                at for at, one in enumerate(leaves_of(outputs)) if isinstance(one, torch.Tensor) and one.requires_grad
            }
        return Computed(map_tensors(outputs, torch.Tensor.detach), buffers, states, held, carried)

    def mixes_gradients(self, results: Sequence[Computed], numbers: Mapping[int, set[str]]) -> bool:
        """Say whether gradients of the weights for both parts do not add up to those for all rows."""
        projection = own_backward.Projection([one.outputs for one in results], self.sizes, numbers)
        every: list[list[torch.Tensor | None]] = []
        for place in range(3):

            def look(outputs: object, place: int = place) -> None:
                weights = list(self._copies.weights.values())
                every.append(own_backward.gradients(projection.of(outputs, place), weights))

            self.compute(place, look=look)
        return not own_backward.add_up(*every)

    def states(self) -> list[int]:
        """Return checksums of the states of all generators."""
        return [self._run.generators.digest(), *states_of(self._generators)]

    def refuse_training(self, loss: torch.Tensor) -> None:
        """End the trial where backward() comes to the weights of the model."""
        copies = {id(one) for one in self._copies.weights.values()}
        if any(id(leaf) in copies for leaf in gradient_hooks.leaves_of(loss)):
            raise TrainsItselfError


def _lead_of_part(lead: Sharded, at: int, size: int) -> Sharded:
    """Return the leading rows of a part, as if a rank more had the rows before it."""
    rank, own = lead.world.rank, lead.rows[lead.world.rank]
    rows = (*lead.rows[:rank], at, size, own - at - size, *lead.rows[rank + 1 :])
    local = lead.local.narrow(lead.dim_of_rows, at, size)
    world = lead.world._replace(rank=rank + 1, size=len(rows), hosted=1, graph_cuts=None)
    part = Sharded(local, world, rows, lead.dim_of_rows)
    part.cut_from = lead, at, size
    return part


def _doubled_lead(lead: Sharded, num_rows: int) -> Sharded:
    world = lead.world._replace(rank=0, size=1, hosted=1, graph_cuts=None)
    first = lead.local.narrow(lead.dim_of_rows, 0, num_rows)
    return Sharded(torch.cat([first, first], lead.dim_of_rows), world, (2 * num_rows,), lead.dim_of_rows)


def _of_script(module: nn.Module) -> list[object]:
    """Return the generators that the script has made; those of torch only where the script or a module names them."""
    named = vars(sys.modules.get("__main__", sys)).values()
    held = [one for part in module.modules() for one in vars(part).values()]
    every = (*gc.get_objects(), *named, *held)
    # by type(): isinstance() asks proxies for their class, which warn
    generators = [one for one in every if issubclass(type(one), own_generators.kinds())]
    return list({id(one): one for one in generators if not isinstance(one, random.SystemRandom)}.values())


def states_of(generators: list[object]) -> list[int]:
    return [zlib.crc32(repr([_plain(part) for part in own_generators.state_of(one)]).encode()) for one in generators]


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, torch.Tensor) else value


@contextmanager
def _put_back(generators: list[object]) -> Iterator[None]:
    states = [own_generators.state_of(one) for one in generators]
    try:
        yield
    finally:
        for one, state in zip(generators, states, strict=False):
            own_generators.put_state(one, state)


def _buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's buffers by name, but for running statistics, which have options of their own."""
    return {
        f"{type(part).__name__}.{name}": one
        for part in module.modules()
        if not isinstance(part, internals.NormLayer)
        for name, one in part.named_buffers(recurse=False)
        if type(one) is torch.Tensor and one.layout == torch.strided
    }
