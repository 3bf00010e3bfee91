"""Global tensors: each has the shape that it has on one device, and this rank holds a part of it.

A training loop that was written for one device sees the whole batch: its size, its loss, its hits. PyTorch's functions
compute with a global tensor by `rules`. Where no rule fits, echelon gathers the parts, and PyTorch computes with the
whole tensor.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch.distributions import Distribution

from ...pytorch import internals
from ..function_types import Args, Function, Kwargs
from ..scaling_error import ScalingError
from ..wire import exchange
from ..wire.world import World


class GlobalTensor(torch.Tensor):
    """A tensor with the shape that it has on one device, and no memory of its own."""

    rule: Callable[[Function, Args, Kwargs], Any]
    """The function that computes PyTorch's functions of global tensors; `rules.install` sets it."""
    inside_of: "ClassVar[Sharded | None]" = None
    """The leading rows of the model that is being computed."""
    below: Callable[[Function, Args, Kwargs], Any]
    """The function that computes PyTorch's inner functions, where no rule was asked; `rules.install` sets it."""
    local: torch.Tensor
    world: World

    @staticmethod
    def _make(cls: object, local: torch.Tensor, world: World, shape: Sequence[int]) -> Any:
        self = internals.wrapper_of(cls, shape, dtype=local.dtype, device=local.device)
        self.local = local
        self.world = world
        return self

    @classmethod
    def __torch_function__(cls, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        return GlobalTensor.rule(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:  # type: ignore[override]
        return GlobalTensor.below(func, args, kwargs or {})

    def whole(self) -> torch.Tensor:
        """Return a plain tensor that is the same on all ranks."""
        raise NotImplementedError

    def put_whole(self, whole: torch.Tensor) -> None:
        """Set the value from a whole tensor that every rank has."""
        raise NotImplementedError

    def versions(self) -> tuple[int, ...]:
        """Return the version counter of each tensor of this process."""
        return (version_of(self.local),)


class Sharded(GlobalTensor):
    """A tensor whose rows (along dim 0, seldom another dim) are spread over the ranks."""

    rows: tuple[int, ...]
    """The number of rows of each rank."""
    dim_of_rows: int
    known_sign: Any
    """The `ignore_index.Sign` of its elements, if there is one."""
    origin: tuple[torch.Tensor, float] | None
    """For a gradient: the gradient of the part, and its factor; an in-place change is copied to that gradient."""
    cut_from: tuple["Sharded", int, int] | None
    """For some of a rank's rows, with which a model is tried: all its rows, the first of them and their number."""

    @staticmethod
    def __new__(cls: object, local: torch.Tensor, world: World, rows: Sequence[int], dim: int = 0) -> "Sharded":
        """Make a global tensor of this rank's rows; a rank without rows holds a placeholder row that does not count."""
        shape = list(local.shape)
        shape[dim] = sum(rows)
        self: Sharded = GlobalTensor._make(cls, local, world, shape)
        self.rows = tuple(rows)
        self.dim_of_rows = dim
        self.known_sign = self.origin = self.cut_from = None
        return self

    @property
    def counted(self) -> torch.Tensor:
        """Return the rows of this rank, without a placeholder."""
        return self.local.narrow(self.dim_of_rows, 0, self.rows[self.world.rank])

    @property
    def shown(self) -> "Sharded":
        """Return the rows as the whole batch has them."""
        return self

    def whole(self) -> torch.Tensor:
        if self.local.layout != torch.strided:
            whole = exchange.gather(self.local.to_dense(), self.world, self.rows, self.dim_of_rows)
            return whole.to_sparse(layout=self.local.layout)
        return exchange.gather(self.local, self.world, self.rows, self.dim_of_rows)

    def put_whole(self, whole: torch.Tensor) -> None:
        _refuse_other_shape(self, whole)
        self.local.copy_(own_part(exchange.enter(whole, self.world), self.world.rank, self.rows, self.dim_of_rows))


class Doubt(Protocol):
    """A factor that the parts of a total may need, and that is known once the ranks have exchanged it."""

    factor: float | None

    def start(self, part: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Start to sum the parts and the counts behind the factor; return a function that waits for the true total."""

    def hurry(self) -> None:
        """Notice that the factor was needed before gradients were computed."""


class Partial(GlobalTensor):
    """A tensor that is the sum of all ranks' parts."""

    fraction: float
    """The share of this rank's samples in the batch; the fractions of all ranks sum up to 1."""
    unsettled: torch.Tensor
    """This rank's part; while there is a doubt, before the multiplication by its factor."""
    doubt: Doubt | None
    _wait: Callable[[], torch.Tensor] | None

    @staticmethod
    def __new__(
        cls: object, local: torch.Tensor, world: World, fraction: float | None = None, doubt: Doubt | None = None
    ) -> "Partial":
        self: Partial = GlobalTensor._make(cls, local, world, local.shape)
        self.fraction = 1.0 / world.size if fraction is None else fraction
        self.doubt = doubt
        self._wait = None
        return self

    @property
    def local(self) -> torch.Tensor:
        """This rank's part; while there is a doubt, the ranks exchange its factor first."""
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
        """Return the sum without its graph; the ranks exchange it once."""
        return self.start()().clone()

    def start(self) -> Callable[[], torch.Tensor]:
        """Start to sum the parts; return a function that waits for the sum."""
        if self._wait is None and self.doubt is not None and self.doubt.factor is None:
            self._wait = self.doubt.start(self.unsettled.detach())
        elif self._wait is None:
            self._wait = exchange.start_total(self.local.detach(), self.world)
        return self._wait

    def versions(self) -> tuple[int, ...]:
        return (version_of(self.unsettled),)

    def put_whole(self, whole: torch.Tensor) -> None:
        _refuse_other_shape(self, whole)
        is_real = whole.is_floating_point() or whole.is_complex()
        self.local.copy_(
            exchange.enter(whole, self.world) / self.world.size if is_real else whole * (self.world.rank == 0)
        )  # in place: other tensors may share these elements
        self._wait = None


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor's elements were written to; -1 for a tensor of inference mode, which does not count."""
    return -1 if tensor.is_inference() else internals.version(tensor)


def _refuse_other_shape(tensor: GlobalTensor, whole: torch.Tensor) -> None:
    if tensor.shape != whole.shape:
        raise ScalingError(
            f"the script changes the shape of a shared batch in place, from {tuple(tensor.shape)} to "
            f"{tuple(whole.shape)}",
            "use the function that returns a new tensor: x = x.unsqueeze(1) in place of x.unsqueeze_(1)",
        )


def own_part(whole: torch.Tensor, rank: int, rows: Sequence[int], dim: int = 0) -> torch.Tensor:
    """Return this rank's rows of a whole tensor; the first row is the placeholder of a rank without rows."""
    return exchange.own_rows(whole, rank, rows, dim) if rows[rank] else whole.narrow(dim, 0, 1)


def entered(tensor: torch.Tensor, world: World) -> torch.Tensor:
    """Return the whole of a tensor for use in this rank's part (`exchange.enter`)."""
    return exchange.enter(tensor.whole() if isinstance(tensor, GlobalTensor) else tensor, world)


def map_tensors(value: object, change: Callable[[torch.Tensor], object]) -> Any:
    """Return the value with `change` applied to every tensor in its tuples, lists, dicts and objects."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        return map_entries(value, [map_tensors(one, change) for one in value])
    if isinstance(value, dict):
        return map_entries(value, [map_tensors(one, change) for one in value.values()])
    return _map_attributes(value, change)


def map_entries(value: Any, entries: list[Any]) -> Any:
    """Return a copy of a tuple, list or dict with other entries, in its order."""
    if isinstance(value, tuple):
        return type(value)(*entries) if hasattr(value, "_fields") else _as_sequence(value, entries)
    if isinstance(value, list):
        return entries
    if type(value) is dict:
        return dict(zip(value, entries, strict=False))
    changed = value.copy()  # an OrderedDict, or a model's output with attributes of the same names
    for key, entry in zip(value, entries, strict=False):
        changed[key] = entry
    return changed


def _map_attributes(value: object, change: Callable[[torch.Tensor], object]) -> Any:
    """Return a changed copy of an object with tensors, such as a batch of graphs; any other value as it is."""
    held = _attributes(value)
    if held:
        changed = copy.copy(value)
        for name, attribute in held.items():
            changed.__dict__[name] = map_tensors(attribute, change)  # also where the object is frozen
        return with_sizes(changed, tensors_of(value), tensors_of(changed))
    return value


def _attributes(value: object) -> dict[str, Any]:
    """Return an object's attributes that are tensors or distributions, by name."""
    if isinstance(value, (type, torch.nn.Module)):
        return {}
    kinds = (torch.Tensor, torch.distributions.Distribution)
    return {name: one for name, one in getattr(value, "__dict__", {}).items() if isinstance(one, kinds)}


def _as_sequence(like: Any, values: Sequence[object]) -> Any:
    """Return the values as a tuple, or as a named result of torch (torch.return_types.max)."""
    return tuple(values) if type(like) is tuple else type(like)(values)


def tensors_of(*values: object) -> "list[torch.Tensor]":
    """Return every tensor in tuples, lists, dicts and objects, in order."""
    tensors: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (tuple, list, dict)):
            tensors += tensors_of(*(value.values() if isinstance(value, dict) else value))
        else:
            tensors += tensors_of(*_attributes(value).values())
    return tensors


def plain(value: object) -> Any:
    """Return the value with whole tensors in place of global tensors; they pass no gradient."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, Partial):
            return tensor.value()
        with torch.no_grad():
            return tensor.whole() if isinstance(tensor, GlobalTensor) else tensor

    return map_tensors(value, change)


def with_sizes(value: object, before: list[torch.Tensor], after: list[torch.Tensor]) -> Any:
    """Give a distribution the batch shape of its changed tensors; return any other value as it is."""
    if isinstance(value, Distribution):
        for old, new in zip(before, after, strict=False):
            changed = [dim for dim, size in enumerate(old.shape) if old.dim() == new.dim() and new.size(dim) != size]
            if changed:
                _resize(value, changed[0], old.size(changed[0]), new.size(changed[0]))
                break
    return value


def _resize(value: Distribution, dim: int, old: int, new: int) -> None:
    shape = list(internals.batch_shape(value))
    if dim < len(shape) and shape[dim] == old:
        shape[dim] = new
        internals.set_batch_shape(value, shape)
