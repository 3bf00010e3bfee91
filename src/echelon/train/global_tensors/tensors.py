"""Tensors as one device would have them, of which this rank holds a part.

A training loop that was written for one device sees the whole batch: its size, its loss, its hits. What is computed
from a view follows `rules`; where no rule fits, the parts are put together and PyTorch computes with the whole.
"""

import copy
from typing import Any, Callable, ClassVar, Dict, List, Optional, Protocol, Sequence, Tuple

import torch

from ..scaling_error import ScalingError
from ..world import World
from . import distributions, exchange

Args = Tuple[Any, ...]
Kwargs = Dict[str, Any]


class GlobalTensor(torch.Tensor):
    """A tensor with the shape that it has on one device, and no memory of its own."""

    rule: Callable[[Any, Args, Kwargs], Any]
    """What happens when PyTorch is called with a view; `rules.install` sets it."""
    inside_of: "ClassVar[Optional[Sharded]]" = None
    """The leading rows of the model that is being computed."""
    below: Callable[[Any, Args, Kwargs], Any]
    """What happens where PyTorch computes with a view and has not asked for a rule; `rules.install` sets it."""
    local: torch.Tensor
    world: World

    @staticmethod
    def _make(cls: Any, local: torch.Tensor, world: World, shape: Sequence[int]) -> Any:
        self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=local.dtype, device=local.device)
        self.local = local
        self.world = world
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return GlobalTensor.rule(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return GlobalTensor.below(func, args, kwargs or {})

    def whole(self) -> torch.Tensor:
        """Return a plain tensor that is the same on all ranks."""
        raise NotImplementedError

    def put_whole(self, whole: torch.Tensor) -> None:
        """Take another value, of which every rank has the whole."""
        raise NotImplementedError

    def versions(self) -> Tuple[int, ...]:
        """Return how often what this process holds was written to."""
        return (version_of(self.local),)


class Sharded(GlobalTensor):
    """Rows (along dim 0, seldom another) of which every rank has some."""

    rows: Tuple[int, ...]
    """How many of them each rank has."""
    dim_of_rows: int
    known_sign: Any
    """What `signs` knows of its elements."""
    origin: Optional[Tuple[torch.Tensor, float]]
    """The gradient that this is a multiple of, and by what that is larger: what is written here is written there."""

    @staticmethod
    def __new__(cls: Any, local: torch.Tensor, world: World, rows: Sequence[int], dim: int = 0) -> "Sharded":
        """View rows; a rank that has none holds one all the same, which counts for nothing."""
        shape = list(local.shape)
        shape[dim] = sum(rows)
        self: Sharded = GlobalTensor._make(cls, local, world, shape)
        self.rows = tuple(rows)
        self.dim_of_rows = dim
        self.known_sign = self.origin = None
        return self

    @property
    def counted(self) -> torch.Tensor:
        """Return the rows of this rank that count."""
        return self.local.narrow(self.dim_of_rows, 0, self.rows[self.world.rank])

    def whole(self) -> torch.Tensor:
        if self.local.layout != torch.strided:
            whole = exchange.gather(self.local.to_dense(), self.world, self.rows, self.dim_of_rows)
            return whole.to_sparse(layout=self.local.layout)
        return exchange.gather(self.local, self.world, self.rows, self.dim_of_rows)

    def put_whole(self, whole: torch.Tensor) -> None:
        _refuse_other_shape(self, whole)
        self.local.copy_(own_part(exchange.enter(whole, self.world), self.world.rank, self.rows, self.dim_of_rows))


class Doubt(Protocol):
    """That the parts of a total may have to be multiplied by a factor, which is known when the ranks have met."""

    factor: Optional[float]

    def start(self, part: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Begin to exchange a part, and what the factor depends on; what waits returns the true total."""

    def hurry(self) -> None:
        """Notice that the factor was needed before gradients were computed."""


class Partial(GlobalTensor):
    """What is the sum of all ranks' parts."""

    fraction: float
    """How much this rank's samples count among all; the fractions of all ranks sum up to 1."""
    unsettled: torch.Tensor
    """This rank's part, as long as there is a doubt: before its factor."""
    doubt: Optional[Doubt]
    _wait: Optional[Callable[[], torch.Tensor]]

    @staticmethod
    def __new__(
        cls: Any, local: torch.Tensor, world: World, fraction: Optional[float] = None, doubt: Optional[Doubt] = None
    ) -> "Partial":
        self: Partial = GlobalTensor._make(cls, local, world, local.shape)
        self.fraction = 1.0 / world.size if fraction is None else fraction
        self.doubt = doubt
        self._wait = None
        return self

    @property
    def local(self) -> torch.Tensor:
        """This rank's part; where there is a doubt, the ranks meet first."""
        if self.doubt is not None:
            if self.doubt.factor is None:
                self.doubt.hurry()
                self.start()()
            factor, self.doubt = self.doubt.factor, None
            if factor is not None and factor != 1:
                self.unsettled = self.unsettled * factor
        return self.unsettled

    @local.setter
    def local(self, part: torch.Tensor) -> None:
        self.unsettled = part

    def whole(self) -> torch.Tensor:
        if torch.is_grad_enabled() and self.local.requires_grad:
            return exchange.total(self.local, self.world)
        return self.value()

    def value(self) -> torch.Tensor:
        """Return the sum without its graph; it is exchanged once."""
        return self.start()().clone()

    def start(self) -> Callable[[], torch.Tensor]:
        """Begin to exchange the value; return what waits for it."""
        if self._wait is None and self.doubt is not None and self.doubt.factor is None:
            self._wait = self.doubt.start(self.unsettled.detach())
        elif self._wait is None:
            self._wait = exchange.start_total(self.local.detach(), self.world)
        return self._wait

    def versions(self) -> Tuple[int, ...]:
        return (version_of(self.unsettled),)

    def put_whole(self, whole: torch.Tensor) -> None:
        _refuse_other_shape(self, whole)
        is_real = whole.is_floating_point() or whole.is_complex()
        self.local.copy_(
            exchange.enter(whole, self.world) / self.world.size if is_real else whole * (self.world.rank == 0)
        )  # in place, as for whoever else sees the same elements
        self._wait = None


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor, or another view of its elements, was written to; inference mode does not count."""
    return -1 if tensor.is_inference() else tensor._version


def _refuse_other_shape(tensor: GlobalTensor, whole: torch.Tensor) -> None:
    if tensor.shape != whole.shape:
        raise ScalingError(
            "the script changes the shape of a shared batch in place, from %s to %s"
            % (tuple(tensor.shape), tuple(whole.shape)),
            "use the function that returns a new tensor: x = x.unsqueeze(1) in place of x.unsqueeze_(1)",
        )


def own_part(whole: torch.Tensor, rank: int, rows: Sequence[int], dim: int = 0) -> torch.Tensor:
    """Return this rank's rows of a whole; where it has none, the first stands in."""
    return exchange.own_rows(whole, rank, rows, dim) if rows[rank] else whole.narrow(dim, 0, 1)


def entered(tensor: torch.Tensor, world: World) -> torch.Tensor:
    """Return a tensor whole, to be used for this rank's part."""
    return exchange.enter(tensor.whole() if isinstance(tensor, GlobalTensor) else tensor, world)


def map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return the value with every tensor in its tuples, lists and dicts changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        return map_entries(value, [map_tensors(one, change) for one in value])
    if isinstance(value, dict):
        return map_entries(value, [map_tensors(one, change) for one in value.values()])
    return _map_attributes(value, change)


def map_entries(value: Any, entries: List[Any]) -> Any:
    """Return a tuple, list or dict like this one with other entries, in its order."""
    if isinstance(value, tuple):
        return type(value)(*entries) if hasattr(value, "_fields") else _as_sequence(value, entries)
    if isinstance(value, list):
        return entries
    if type(value) is dict:
        return dict(zip(value, entries))  # noqa: B905
    changed = value.copy()  # an OrderedDict, or a model's output with attributes of the same names
    for key, entry in zip(value, entries):  # noqa: B905
        changed[key] = entry
    return changed


def _map_attributes(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return a copy of an object that holds tensors, as batches of graphs and distributions do; else the value."""
    held = _attributes(value)
    if held:
        changed = copy.copy(value)
        for name, attribute in held.items():
            changed.__dict__[name] = map_tensors(attribute, change)  # also where the object is frozen
        return distributions.with_sizes(changed, tensors_of(value), tensors_of(changed))
    return value


def _attributes(value: Any) -> Dict[str, Any]:
    """Return the tensors that an object holds, by name; and the distribution on which another one is built."""
    if isinstance(value, (type, torch.nn.Module)):
        return {}
    kinds = (torch.Tensor, torch.distributions.Distribution)
    return {name: one for name, one in getattr(value, "__dict__", {}).items() if isinstance(one, kinds)}


def _as_sequence(like: Any, values: Any) -> Any:
    """Return a tuple, or one of torch's own named results (torch.return_types.max), of these values."""
    return tuple(values) if type(like) is tuple else type(like)(values)


def tensors_of(*values: Any) -> "list[torch.Tensor]":
    """Return every tensor in tuples, lists, dicts and objects, in order."""
    tensors: "list[torch.Tensor]" = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (tuple, list, dict)):
            tensors += tensors_of(*(value.values() if isinstance(value, dict) else value))
        else:
            tensors += tensors_of(*_attributes(value).values())
    return tensors


def plain(value: Any) -> Any:
    """Return the value without views, the same on all ranks; no gradient flows through what was one."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, Partial):
            return tensor.value()
        with torch.no_grad():
            return tensor.whole() if isinstance(tensor, GlobalTensor) else tensor

    return map_tensors(value, change)
