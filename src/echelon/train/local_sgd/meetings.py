"""Meetings of ranks that train alone: when they take place, and how they change the weights.

For one weight: x is the rank's own value, θ is the common value of all ranks, d = x - (x after the last meeting) is the
rank's drift.

    local SGD     x ← mean(x)
    DiLoCo        g = -mean(d);  m ← μ m + g;  θ ← θ - η (g + μ m);  x ← θ
    late          mean(d) of the previous meeting has arrived and changes θ in the same way;
                  the exchange of the present d starts;  x ← θ + d

η = 1 and μ = 0 is the plain average, in the late form too.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..modules import weights_of
from ..scaling_error import ScalingError
from ..wire import groups
from ..wire.world import World


class MeetingRule(NamedTuple):
    """The interval of the meetings, and the outer optimizer."""

    num_steps: int
    """The number of steps of one optimizer from one meeting to the next."""
    learning_rate: float = 1.0
    """The learning rate of the outer optimizer, which is SGD with Nesterov's momentum."""
    momentum: float = 0.0
    is_late: bool = False
    """Whether the mean of one meeting is applied at the next meeting, so that no rank waits."""

    @property
    def is_average(self) -> bool:
        """Whether a meeting sets weights to their mean, and needs no state."""
        return self.learning_rate == 1.0 and not self.momentum and not self.is_late


class _Place:
    def __init__(self, parameter: torch.Tensor, rule: MeetingRule) -> None:
        self.parameter = parameter
        self.common = _copy(parameter) if not rule.is_average else parameter
        self.start = _copy(parameter) if rule.is_late else self.common
        self.momentum: torch.Tensor | None = None
        self.is_adrift = False
        """Whether the weight has changed since the last meeting."""
        self.is_used = True
        """Whether the weight has changed since all ranks last had the same value."""

    def drift(self) -> torch.Tensor:
        return self.parameter.detach() - self.start

    def advance(self, drift: torch.Tensor, rule: MeetingRule) -> None:
        """Step along the mean drift of all ranks, as torch.optim.SGD(nesterov=True) does."""
        gradient = -drift
        if rule.momentum:
            self.momentum = gradient if self.momentum is None else self.momentum.mul_(rule.momentum).add_(gradient)
            gradient = gradient + rule.momentum * self.momentum
        self.common.sub_(gradient, alpha=rule.learning_rate)


class _Flight(NamedTuple):
    """Drifts whose mean the ranks exchange now."""

    places: list[_Place]
    wait: Callable[[], list[torch.Tensor]]


class Meetings:
    def __init__(self, world: World, rule: MeetingRule) -> None:
        self._world = world
        self._rule = rule
        self._group: dist.ProcessGroup | None = None
        self._places: dict[int, _Place] = {}  # in the order of their first steps, which is the same on all ranks
        self._steps: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        self._flights: list[_Flight] = []
        self._is_held = False
        self.are_apart = False
        """Whether ranks may have different weights."""
        self.num_steps = 0
        self.num_regular = 0
        self.num_early = 0

    def knows(self, parameters: Iterable[torch.Tensor]) -> bool:
        return any(id(one) in self._places for one in parameters)

    def weights(self) -> list[Any]:
        return [place.parameter for place in self._places.values()]

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the weights that an optimizer is about to change."""
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ScalingError(
                "LBFGS decides by the gradients how often it computes the loss, and with --sync-every each "
                "rank has its own gradients",
                "remove --sync-every, or use another optimizer",
            )
        if self._is_held:
            return
        for place in self._of(optimizer):
            place.is_adrift = place.is_used = True

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Count a step, and meet after the last step of an interval."""
        if self._is_held:
            return
        self.are_apart = True
        self.num_steps += 1
        number = self._steps.get(optimizer, 0) + 1
        self._steps[optimizer] = number % self._rule.num_steps
        if number == self._rule.num_steps:
            self._meet(self._of(optimizer))
            self.num_regular += 1

    @contextmanager
    def one_step(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Count this block as one step, whether or not the optimizer steps: a rank may have to skip its step."""
        self.before_step(optimizer)
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        self.after_step(optimizer)

    def meet_if_apart(self) -> bool:
        """Meet before the script reads weights, so that all ranks have the same; return whether they differed."""
        if not self.are_apart:
            return False
        changed = self._land(self._flights)
        adrift = [place for place in self._places.values() if place.is_adrift]
        self._average(adrift)
        for place in changed:
            _put(place.parameter, place.common)
            _put(place.start, place.common)
        self.num_early += bool(changed or adrift)
        self._steps.clear()
        self._places = {key: place for key, place in self._places.items() if place.is_used}  # frees old models
        for place in self._places.values():
            place.is_used = False
        self.are_apart = False
        return True

    def forget(self, parameters: Iterable[torch.Tensor]) -> None:
        for parameter in parameters:
            self._places.pop(id(parameter), None)

    def mean(self, tensors: list[torch.Tensor]) -> None:
        for tensor, mean in zip(tensors, start_mean(tensors, self._world, self._meet_apart())(), strict=False):
            tensor.detach().copy_(mean)

    def _of(self, optimizer: torch.optim.Optimizer) -> list[_Place]:
        places = []
        for parameter in weights_of(optimizer):
            place = self._places.get(id(parameter))
            if place is None and parameter.requires_grad:
                place = self._places[id(parameter)] = _Place(parameter, self._rule)
            if place is not None:
                places.append(place)
        return places

    def _meet(self, places: list[_Place]) -> None:
        if not self._rule.is_late:
            self._average(places)
            return
        wanted = {id(place) for place in places}
        self._land([one for one in self._flights if not wanted.isdisjoint(map(id, one.places))])
        drifts = [place.drift() for place in places]
        self._flights.append(_Flight(places, start_mean(drifts, self._world, self._meet_apart())))
        for place, drift in zip(places, drifts, strict=False):
            _put(place.parameter, place.common + drift)
            _put(place.start, place.parameter)
            place.is_adrift = False

    def _average(self, places: list[_Place]) -> None:
        if self._rule.is_average:
            self.mean([place.parameter for place in places])
        else:
            drifts = start_mean([place.drift() for place in places], self._world, self._meet_apart())()
            for place, drift in zip(places, drifts, strict=False):
                place.advance(drift, self._rule)
                _put(place.parameter, place.common)
                _put(place.start, place.common)
        for place in places:
            place.is_adrift = False

    def _land(self, flights: list[_Flight]) -> list[_Place]:
        """Apply the means of drifts that were exchanged; return their weights."""
        landed = []
        for flight in list(flights):
            for place, drift in zip(flight.places, flight.wait(), strict=False):
                place.advance(drift, self._rule)
                landed.append(place)
            self._flights.remove(flight)
        return landed

    def _meet_apart(self) -> object:
        """Return a separate process group: a long exchange of drifts must not delay the loss that is printed."""
        if self._group is None:
            self._group = groups.new()
        return self._group


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _put(tensor: torch.Tensor, value: torch.Tensor) -> None:
    if tensor is not value:
        tensor.detach().copy_(value.detach())


_BUNDLE_BYTES = 32 << 20
_NARROW = (torch.half, torch.bfloat16)


def start_mean(tensors: Sequence[torch.Tensor], world: World, group: object) -> Callable[[], list[torch.Tensor]]:
    """Start the mean over all ranks; return a function that waits for the means."""
    bundles = _bundles(tensors)
    flats = [_flat(bundle) for bundle in bundles]
    works = [dist.all_reduce(flat, group=group, async_op=True) for flat in flats]

    def wait() -> list[torch.Tensor]:
        means: list[torch.Tensor] = []
        for bundle, flat, work in zip(bundles, flats, works, strict=False):
            work.wait()
            parts = torch.split(flat.div_(world.size), [one.numel() for one in bundle])
            means += [part.view(one.shape).to(one.dtype) for part, one in zip(parts, bundle, strict=False)]
        return means

    return wait


def _flat(bundle: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return several tensors as one flat tensor; a sum over ranks needs more digits than 16-bit weights have."""
    flat = torch.cat([one.detach().reshape(-1) for one in bundle])
    return flat.float() if flat.dtype in _NARROW else flat


def _bundles(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Group neighbouring tensors of the same dtype and device, up to a maximum size."""
    bundles: list[list[torch.Tensor]] = []
    num_bytes = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        last = bundles[-1][0] if bundles else None
        if (
            last is None
            or last.dtype != tensor.dtype
            or last.device != tensor.device
            or num_bytes + size > _BUNDLE_BYTES
        ):
            bundles.append([])
            num_bytes = 0
        bundles[-1].append(tensor)
        num_bytes += size
    return bundles
