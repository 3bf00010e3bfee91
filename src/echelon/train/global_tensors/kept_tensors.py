"""Tensors that a model keeps in attributes for the loop, such as the loss that balances its experts.

A trial of the model's rows shows how each follows from the samples. What is equal for all samples stays as it is; what
the ranks cannot put together is refused where the loop uses it.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from ...pytorch import internals
from ..scaling_error import ScalingError
from ..wire.world import World
from .tensors import GlobalTensor, Partial, Sharded, tensors_of

AttributePlace = tuple[str, str, str]
"""The name of a module within the model, of its attribute, and the key in a dict; the entries of a list share one."""
SUM, MEAN, ROWS = "sum", "mean", "rows"
MIXED = ""
"""The way of a tensor that ranks cannot put together. Rows have the way "rows DIM RATIO"."""
_MIXES = "mixes the samples of its batch"
_OF_PYTORCH = ("_parameters", "_buffers", "_modules")


class Ways(NamedTuple):
    """How the tensors that a model keeps follow from the samples, and what mixes the samples."""

    of_places: dict[AttributePlace, str]
    mixing: str


class Mixed(GlobalTensor):
    """A tensor that the ranks cannot put together: each use is refused."""

    refusal: tuple[str, str]

    @staticmethod
    def __new__(cls: object, tensor: torch.Tensor, world: World, refusal: tuple[str, str]) -> "Mixed":
        self: Any = internals.wrapper_of(cls, tensor.shape, dtype=tensor.dtype, device=tensor.device)
        self.world, self.refusal = world, refusal
        return self  # type: ignore[no-any-return]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "__get__":
            return super().__torch_function__(func, types, args, kwargs)
        mixed = next(one for one in tensors_of(args, kwargs) if isinstance(one, Mixed))
        raise ScalingError(*mixed.refusal)

    @property
    def local(self) -> torch.Tensor:  # type: ignore[override]
        raise ScalingError(*self.refusal)


def of(model: nn.Module) -> dict[AttributePlace, list[torch.Tensor]]:
    """Return the tensors with a graph that attributes of a model hold, also in a list or dict."""
    kept: dict[AttributePlace, list[torch.Tensor]] = {}
    for name, part in model.named_modules():
        for attribute, key, one in _attributes(part):
            if _is_kept(one):
                kept.setdefault((name, attribute, key), []).append(one)
    return kept


def held(model: nn.Module) -> list[torch.Tensor]:
    """Return these tensors, and those that the loop got in their place."""
    entries = (one for part in model.modules() for _, _, one in _attributes(part))
    return [one for one in entries if isinstance(one, GlobalTensor) or _is_kept(one)]


def _attributes(part: nn.Module) -> Iterator[tuple[str, str, Any]]:
    for attribute, value in vars(part).items():
        if attribute not in _OF_PYTORCH:
            yield from ((attribute, _name(key), one) for key, one in _entries(value).items())


def _name(key: object) -> str:
    return key if isinstance(key, str) else ""


def _is_kept(value: object) -> bool:
    return type(value) is torch.Tensor and value.grad_fn is not None


def agreed(of_ranks: list[dict[AttributePlace, set[str]]]) -> dict[AttributePlace, set[str]]:
    """Return the ways that fit on all ranks; a rank whose samples have a tensor alike has none for it."""
    places = sorted({place for ways in of_ranks for place in ways})
    return {place: set.intersection(*(ways[place] for ways in of_ranks if place in ways)) for place in places}


def put_together(model: nn.Module, ways: Ways, lead: Sharded) -> None:
    """Give the loop these tensors of a call as the whole batch has them."""
    mixing = f"{type(model).__name__} {ways.mixing or _MIXES}"
    if lead.world.is_exact:
        mixing = "with --exact echelon computes each shard of a batch separately, and forward() keeps the last one"
    for (name, attribute, key_of_way), way in ways.of_places.items():
        part = model.get_submodule(name)
        value = vars(part).get(attribute)
        told = (
            f"{type(part).__name__}.{attribute}, which forward() keeps, is not the one of the whole batch: {mixing}",
            "compute it outside of the model, where the batch is whole: let forward() keep or return a row for each "
            "sample; or start one rank: echelon run -n 1 …",
        )
        for key, one in _entries(value).items():
            if _is_kept(one) and _name(key) == key_of_way:
                changed = _whole(one, way, lead, told)
                if isinstance(value, torch.Tensor):
                    vars(part)[attribute] = changed
                else:
                    value[key] = changed  # type: ignore[index]


def _whole(tensor: torch.Tensor, way: str, lead: Sharded, told: tuple[str, str]) -> torch.Tensor:
    world, fraction = lead.world, lead.rows[lead.world.rank] / sum(lead.rows)
    if way == MIXED or world.is_exact:
        return Mixed(tensor, world, told)
    if way == SUM:
        return Partial(tensor if fraction else tensor * 0, world, fraction)  # a placeholder counts for nothing
    if way == MEAN:
        return Partial(tensor * fraction, world, fraction)
    _, dim, ratio = way.split()
    return Sharded(tensor, world, [num_rows * int(ratio) for num_rows in lead.rows], int(dim))


def _entries(value: object) -> dict[Any, Any]:
    if isinstance(value, list):
        return dict(enumerate(value))
    return value if isinstance(value, dict) else {None: value}
