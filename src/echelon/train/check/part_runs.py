"""One call of a model, computed for all rows of this rank and for two parts of them, without side effects.

All three draw the numbers that one device draws for these rows, from the same states of all generators. A rank with a
single row, and a model that fails with fewer rows than this rank has, get as many again: altered copies.
"""

import gc
import math
import random
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
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
from ..wire import device as devices
from ..wire.world import alone
from .closeness import HALF, differs
from .isolation import Copies, detached, fresh, uncompiled, without_chance

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
        self, place: int, mode: AbstractContextManager[object] | None = None, *, num_calls: int = 1
    ) -> Computed:
        """Compute all rows (0) or one of the parts (1, 2); the last of several calls counts."""
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
            with mode or nullcontext():
                for _ in range(num_calls):
                    outputs = self._original(self._module, *args, **kwargs)
            buffers = {
                name: one.detach().clone()
                for name, one in _buffers(self._module).items()
                if versions.get(name) != internals.version(one)
            }
            states = self.states()
            carried = changed()
            held = {at: [one.detach() for one in tensors] for at, tensors in kept_tensors.of(self._module).items()}
        if not place:
            self.need_gradients = {
                at for at, one in enumerate(leaves_of(outputs)) if isinstance(one, torch.Tensor) and one.requires_grad
            }
        return Computed(map_tensors(outputs, torch.Tensor.detach), buffers, states, held, carried)

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


SAME, SUM, MEAN, ROWS = "same", kept_tensors.SUM, kept_tensors.MEAN, kept_tensors.ROWS
_OF_NUMBERS = 1e-4
"""The share of a number that may be rounding."""


class Sizes(NamedTuple):
    """The numbers of rows of a batch and of its two parts."""

    first: int
    rest: int

    @property
    def all_rows(self) -> int:
        return self.first + self.rest


def fits(whole: Any, first: Any, rest: Any, sizes: Sizes) -> set[str] | None:
    """Return all ways in which a result may follow from those of the parts; None where nothing can be said."""
    if not all(isinstance(one, torch.Tensor) for one in (whole, first, rest)):
        are_single = all(not isinstance(one, torch.Tensor) or one.numel() == 1 for one in (whole, first, rest))
        return _of_numbers(float(whole), float(first), float(rest), sizes) if are_single else None
    three = [whole, first, rest]
    is_plain = all(one.layout == torch.strided and not one.is_quantized and not one.is_meta for one in three)
    if not is_plain or len({one.dim() for one in three}) > 1:
        return None
    dims = dims_of_rows(three, sizes)
    if dims:
        dim, ratio = dims[0]
        parts = torch.split(whole, [ratio * sizes.first, ratio * sizes.rest], dim)
        is_same = all(_are_equal(*_common(one, part)) for one, part in zip((first, rest), parts, strict=False))
        return {ROWS} if is_same else set()
    if whole.shape == first.shape == rest.shape:
        return _of_same_shape(whole, first, rest, sizes)
    if whole.dim() and whole.size(0) == first.size(0) + rest.size(0) and whole.shape[1:] == first.shape[1:]:
        return {ROWS} if rest.shape[1:] == first.shape[1:] and _are_equal(torch.cat([first, rest]), whole) else set()
    return None


def kept_ways(results: Sequence[Computed], sizes: Sizes) -> dict[kept_tensors.AttributePlace, set[str]]:
    """Return the ways in which each tensor that a model keeps may follow from the samples, unless all have it alike."""
    ways: dict[kept_tensors.AttributePlace, set[str]] = {}
    for place in results[0].attributes:
        every = [one.attributes.get(place, []) for one in results]
        if len(set(map(len, every))) > 1:
            ways[place] = set()
            continue
        possible = [_ways(list(three), sizes) for three in zip(*every, strict=True)]
        of_samples = [one for one in possible if SAME not in one]
        if of_samples:
            ways[place] = set.intersection(*of_samples)
    return ways


def _ways(three: list[torch.Tensor], sizes: Sizes) -> set[str]:
    possible = fits(three[0], three[1], three[2], sizes) or set()
    dims = dims_of_rows(three, sizes) if len({one.dim() for one in three}) == 1 else []
    if ROWS in possible:
        return {"{} {} {}".format(ROWS, *dims[0])} if dims else set()
    return possible


def dims_of_rows(three: list[torch.Tensor], sizes: Sizes) -> list[tuple[int, int]]:
    """Return the dims that are as long as the rows, or a multiple, and this multiple."""
    dims = []
    for dim, (both, first, rest) in enumerate(zip(*(one.shape for one in three), strict=False)):
        ratio = both // sizes.all_rows
        if ratio and (both, first, rest) == (ratio * sizes.all_rows, ratio * sizes.first, ratio * sizes.rest):
            dims.append((dim, ratio))
    return dims


def _of_same_shape(whole: torch.Tensor, first: torch.Tensor, rest: torch.Tensor, sizes: Sizes) -> set[str]:
    if whole.numel() == 1 and not whole.is_complex():
        return _of_numbers(float(whole), float(first), float(rest), sizes, is_half=_is_half(whole))
    ways = {SAME} if _are_equal(first, whole) and _are_equal(rest, whole) else set()
    if whole.dtype == torch.bool:
        return ways
    if _are_equal(first + rest, whole):
        ways.add(SUM)
    is_real = whole.is_floating_point() or whole.is_complex()
    if is_real and _are_equal((first * sizes.first + rest * sizes.rest) / sizes.all_rows, whole):
        ways.add(MEAN)
    return ways


def _of_numbers(whole: float, first: float, rest: float, sizes: Sizes, *, is_half: bool = False) -> set[str]:
    if not math.isfinite(whole):
        return {SAME, MEAN}  # nothing contradicts a loss that is a mean
    candidates = {SUM: first + rest, MEAN: (first * sizes.first + rest * sizes.rest) / sizes.all_rows}
    if first == rest:
        candidates[SAME] = first
    tolerance = HALF if is_half else _OF_NUMBERS
    size = max(abs(first), abs(rest))
    return {kind for kind, one in candidates.items() if abs(one - whole) <= tolerance * max(abs(whole), size) + 1e-12}


def _is_half(tensor: torch.Tensor) -> bool:
    return devices.is_autocast_enabled() or tensor.dtype in (torch.half, torch.bfloat16)


def _are_equal(own: torch.Tensor, expected: torch.Tensor) -> bool:
    return own.shape == expected.shape and not differs(own, expected)


def _common(own: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut two tensors to what they share: a part may be padded to its own longest sample."""
    for dim, (size, other_size) in enumerate(zip(own.shape, other.shape, strict=False)):
        own, other = (one.narrow(dim, 0, min(size, other_size)) for one in (own, other))
    return own, other
