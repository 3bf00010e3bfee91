"""Batches that itertools.cycle holds: it reads a loader once, keeps its batches, and gives them again and again.

No variable of the script reaches these batches. They are named by the pass over a loader that made them.
"""

import gc
import itertools
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from .. import batches, patches
from ..global_tensors.tensors import map_tensors, plain, tensors_of
from ..scaling_error import ScalingError
from ..wire.world import World
from .hollow import ShapeOnlyTensor

PREFIX = "cycle/"
_UNKNOWN = (-1, -1)
_WHY = "The batches that itertools.cycle keeps belong to a checkpoint."
_places: Any = WeakTensorKeyDictionary()
"""The pass and the place of each living batch, by its first tensor."""
_cycles: "weakref.WeakSet[Any]" = weakref.WeakSet()


class Cycle(itertools.cycle):  # type: ignore[type-arg]
    def __init__(self, *_: Any) -> None:
        _cycles.add(self)


def install() -> None:
    patches.replace(itertools, "cycle", Cycle, why=_WHY)


def mark(batch: object, number: int, place: int) -> None:
    """Note on a batch that it is number `place` of the pass `number` over a loader."""
    for one in tensors_of(batch)[:1]:
        _places[one] = number, place


def tensors() -> dict[str, torch.Tensor]:
    """Return the whole tensors of all kept batches, by name; all ranks call it together."""
    return {
        _name(place, number): plain(tensor).detach()
        for place, batch, _, _ in _kept()
        for number, tensor in enumerate(tensors_of(batch))
    }


def _name(place: tuple[int, int], number: int) -> str:
    return f"{PREFIX}{place[0]}/{place[1]}/{number}"


def put(saved: dict[str, torch.Tensor], world: World) -> None:
    """Give the kept batches, which have no values, those of a checkpoint, shared by the ranks there are now."""
    for place, batch, holder, at in list(_kept()):
        values = iter([saved[_name(place, number)] for number in range(len(tensors_of(batch)))])
        whole = map_tensors(batch, partial(_filled, values))
        size = batches.length_of(whole)
        is_shared = world.size > 1 and size >= world.size
        holder[at] = batches.of_whole(whole, world, batches.rows_of(size, world.size)) if is_shared else whole
        mark(holder[at], *place)


def _filled(values: Iterator[torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    """Return the next value; give it to the tensor too, which a loop may have just taken from the cycle."""
    value = next(values).to(tensor.device)
    if isinstance(tensor, ShapeOnlyTensor):
        tensor.value = value
    return value


def _kept() -> Iterator[tuple[tuple[int, int], Any, list[Any], int]]:
    """Yield each kept batch: its pass and place, the batch, the list that holds it, and the place there; in order."""
    found = []
    for holder in _holders():
        for at, batch in enumerate(holder):
            first = tensors_of(batch)[:1]
            if not first:
                continue
            place: tuple[int, int] = _places.get(first[0], _UNKNOWN)
            if place == _UNKNOWN:
                raise ScalingError(
                    "--checkpoint-every cannot keep the tensors that itertools.cycle holds: no DataLoader made them",
                    "write a generator in its place: while True: yield from batches",
                )
            found.append((place, batch, holder, at))
    return iter(sorted(found, key=lambda one: one[0]))


def _holders() -> list[list[Any]]:
    return [kept for one in list(_cycles) for kept in gc.get_referents(one) if type(kept) is list and kept]
