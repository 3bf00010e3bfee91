"""Global tensors with several parts in this process, one for each virtual shard that the process computes.

With `--exact V` a batch is cut into V shards, however many processes there are. Each shard is computed alone, in its
own shape, so its bits do not depend on the process that computes it. Sums over shards follow one binary tree (`tree`).
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..exact import tree
from ..function_types import Args, Kwargs
from ..scaling_error import ScalingError
from ..wire import exchange
from .tensors import GlobalTensor, Partial, map_entries, map_tensors, tensors_of, version_of

_SHARDS = "_echelon_shards"
"""The attribute that holds the shards' batches, on a batch that is no tuple, list or dict."""


class Pieces(GlobalTensor):
    """One global tensor for each virtual shard of this process: all are rows, or all are parts of a total."""

    parts: list[Any]
    _value: torch.Tensor | None
    _joined: torch.Tensor | None
    _versions: tuple[int, ...]
    """The versions of the parts when a value was kept; a tensor that shares their elements may change them later."""

    @staticmethod
    def __new__(cls: object, parts: Sequence[GlobalTensor]) -> "Pieces":
        self: Pieces = GlobalTensor._make(cls, parts[0].local, parts[0].world, parts[0].shape)
        self.parts = list(parts)
        self._value = self._joined = None
        self._versions = ()
        return self

    @property
    def is_total(self) -> bool:
        """Whether its parts are summed up, rather than put side by side."""
        return isinstance(self.parts[0], Partial)

    def whole(self) -> torch.Tensor:
        if not torch.is_grad_enabled() or not any(one.local.requires_grad for one in self.parts):
            return self.value()
        self._forget_what_changed()
        if self._joined is None:
            locals_ = [one.local for one in self.parts]
            self._joined = self.world.graph_cuts.join(self.value(), locals_, self._gradient_of)
        joined: torch.Tensor = self._joined
        return joined

    def _gradient_of(self, gradient: torch.Tensor, place: int) -> torch.Tensor:
        """Return one part's gradient, taken from the gradient of the whole."""
        part = self.parts[place]
        if self.is_total:
            return gradient
        mine = exchange.own_rows(gradient, part.world.rank, part.rows, part.dim_of_rows)
        return mine if mine.shape == part.local.shape else torch.zeros_like(part.local)  # a placeholder row

    def value(self) -> torch.Tensor:
        """Return the rows, or the sum, of all virtual shards, without a graph."""
        locals_ = [(one if self.is_total else one.shown).local.detach() for one in self.parts]
        if not self.is_total:
            return exchange.gather_pieces(locals_, self.parts[0].world, self.parts[0].rows, self.parts[0].dim_of_rows)
        self._forget_what_changed()
        value = tree.total([[one] for one in locals_], self.parts[0].world)[0] if self._value is None else self._value
        self._value = value
        return value.clone()

    def keep_value(self, value: torch.Tensor) -> None:
        """Keep a total that was exchanged together with other tensors."""
        self._forget_what_changed()
        self._value = value

    def versions(self) -> tuple[int, ...]:
        return tuple(version_of(one.local) for one in self.parts)

    def _forget_what_changed(self) -> None:
        versions = self.versions()
        if versions != self._versions:
            self._value, self._joined, self._versions = None, None, versions

    def put_whole(self, whole: torch.Tensor) -> None:
        for part in self.parts:
            part.put_whole(whole)


def of(parts: Sequence[Any]) -> Any:
    """Merge the values of the virtual shards into one value of the same structure, with `Pieces` as its tensors."""
    first = parts[0]
    if isinstance(first, GlobalTensor):
        return Pieces(parts)
    if isinstance(first, torch.Tensor):
        return first
    if isinstance(first, (tuple, list)):
        return map_entries(first, [of(several) for several in zip(*parts, strict=False)])
    if isinstance(first, dict):
        return map_entries(first, [of([one[key] for one in parts]) for key in first])
    names = [name for name, one in getattr(first, "__dict__", {}).items() if isinstance(one, GlobalTensor)]
    if names:
        merged = copy.copy(first)
        for name in names:
            setattr(merged, name, of([getattr(one, name) for one in parts]))
        merged.__dict__[_SHARDS] = parts
        return merged
    if isinstance(first, (int, float)) and any(one != first for one in parts):
        raise ScalingError(
            "with --exact echelon computes each shard of a batch separately, but a number differs between the "
            "shards: {}".format(", ".join(str(one) for one in parts)),
            "use a tensor with an entry for each sample",
        )
    return first


def apart(value: object, num_parts: int) -> list[Any]:
    """Return the value of each virtual shard."""
    return [_part(value, place) for place in range(num_parts)]


def _part(value: object, place: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value.parts[place] if isinstance(value, Pieces) else value
    if isinstance(value, (tuple, list)):
        return map_entries(value, [_part(one, place) for one in value])
    if isinstance(value, dict):
        return map_entries(value, [_part(one, place) for one in value.values()])
    shards = getattr(value, "__dict__", {}).get(_SHARDS)
    if shards is None:
        return map_tensors(value, lambda one: _part(one, place))
    own = copy.copy(shards[place])  # with the shard's other attributes, such as its number of graphs
    for name, attribute in value.__dict__.items():
        if name != _SHARDS and attribute is not getattr(
            shards[0], name, None
        ):  # a tensor, or an attribute that the script has set
            setattr(own, name, _part(attribute, place))
    return own


def first_of(args: Args, kwargs: Kwargs) -> Pieces | None:
    return next((one for one in tensors_of(args, kwargs) if isinstance(one, Pieces)), None)


def each(compute: Callable[[Args, Kwargs], object], args: Args, kwargs: Kwargs, lead: Pieces, *, draws: bool) -> Any:
    """Compute with each virtual shard's part by itself; return None where a shard needs another one's part."""
    state = torch.get_rng_state() if draws else None
    results = []
    for part in apart((args, kwargs), len(lead.parts)):
        if state is not None:
            torch.set_rng_state(state)  # each shard draws for all rows and keeps its own rows
        try:
            result = compute(*part)
        except exchange.ExactError:
            return None
        if result is None:
            return None
        results.append(result)
    first = args[0] if args else None
    if isinstance(first, Pieces) and all(one is part for one, part in zip(results, first.parts, strict=False)):
        return first  # in place
    return of(results)


def shards_of(value: object) -> list[torch.Tensor]:
    """Return the parts of all `Pieces` in a value, and its other tensors as they are."""
    tensors: list[torch.Tensor] = []
    for tensor in tensors_of(value):
        tensors += tensor.parts if isinstance(tensor, Pieces) else [tensor]
    return tensors
