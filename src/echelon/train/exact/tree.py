"""Sums whose bits do not depend on the number of processes: they follow one binary tree over all shards.

Neighbours are added first: (0+1), (2+3), then (0+1)+(2+3), and so on. A process holds neighbouring shards, and their
number is a power of two, so it begins with a whole subtree. Then the processes exchange their sums at doubling
distances; of large tensors they exchange halves.
"""

from typing import Dict, List, Optional, Sequence, Tuple

import torch

from .. import point_to_point
from ..cpu.all_gather import TAG
from ..world import World

Tensors = Sequence[Optional[torch.Tensor]]
SMALL_BYTES = 1 << 17
"""Up to this size an exchange takes no longer than its latency."""


class Sum:
    """The sum of the shards' tensors, which arrive in order; it keeps one partial sum for each level of the tree."""

    def __init__(self) -> None:
        self._levels: List[Tuple[int, List[Optional[torch.Tensor]]]] = []

    def add(self, tensors: Tensors) -> None:
        """Add the tensors of the next shard; None stands for a tensor that the shard does not have."""
        height, latest = 0, list(tensors)
        while self._levels and self._levels[-1][0] == height:
            _, before = self._levels.pop()
            latest = [_added(one, other) for one, other in zip(before, latest)]  # noqa: B905
            height += 1
        self._levels.append((height, latest))

    @property
    def local(self) -> List[Optional[torch.Tensor]]:
        """The sum of all shards that were added; their number must be a power of two."""
        ((_, tensors),) = self._levels
        return tensors


class SumByPlace:
    """The sum of the shards' tensors, which arrive in any order; each shard waits for the shards before it."""

    def __init__(self) -> None:
        self._sum = Sum()
        self._waiting: Dict[int, Tensors] = {}
        self._next = 0

    def add(self, place: int, tensors: Tensors) -> None:
        """Add the tensors of the shard at a place."""
        self._waiting[place] = tensors
        while self._next in self._waiting:
            self._sum.add(self._waiting.pop(self._next))
            self._next += 1

    @property
    def local(self) -> List[Optional[torch.Tensor]]:
        """The sum of all shards that were added; their number must be a power of two."""
        return self._sum.local


def _added(first: Optional[torch.Tensor], second: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    if first is None or second is None:
        present = second if first is None else first
        return None if present is None else present + 0.0  # a process too adds zeros for a tensor that it lacks
    return first.add_(second)


def total(tensors_of_shards: Sequence[Sequence[torch.Tensor]], world: World) -> List[torch.Tensor]:
    """Return the sums over all shards of all processes."""
    tree_sum = Sum()
    for tensors in tensors_of_shards:
        tree_sum.add([one.clone() for one in tensors])
    local = [one for one in tree_sum.local if one is not None]
    return [one for one in across(local, local, world) if one is not None]


def across(
    tensors: Tensors, likes: Sequence[torch.Tensor], world: World, first_rank: int = 0
) -> List[Optional[torch.Tensor]]:
    """Return the sums over all processes of their tensors; None stands for a tensor that no process has.

    `likes` are tensors of the same shapes and dtypes, for tensors that this process lacks. If the processes are not all
    ranks, they are neighbours from `first_rank` on.
    """
    place = world.processes
    if place.size == 1:
        return list(tensors)
    results: List[Optional[torch.Tensor]] = [None] * len(tensors)
    for dtype in sorted({one.dtype for one in likes}, key=str):
        places = [at for at, one in enumerate(likes) if one.dtype is dtype]
        flat = _flat([tensors[at] for at in places], [likes[at] for at in places], dtype)
        add_across(flat, place, first_rank)
        known, offset = flat[: len(places)].tolist(), len(places)
        for at, count in zip(places, known):  # noqa: B905
            size = likes[at].numel()
            if count:
                results[at] = flat[offset : offset + size].view_as(likes[at])
            offset += size
    return results


def _flat(tensors: Tensors, likes: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Return one flat tensor: a flag for each tensor that says whether it is present, then all values."""
    device = likes[0].device
    known = torch.tensor([one is not None for one in tensors], dtype=dtype, device=device)
    values = [like.new_zeros(like.numel()) if one is None else one.reshape(-1)
              for one, like in zip(tensors, likes)]  # noqa: B905  # fmt: skip
    return torch.cat([known, *values])


def add_across(flat: torch.Tensor, place: World, first_rank: int = 0) -> None:
    """Sum over processes, in place: with the process at distance 1, then at distance 2, 4, …"""
    if flat.numel() * flat.element_size() <= SMALL_BYTES:
        _add_whole(flat, place, first_rank)
    else:
        _add_halves(flat, place, first_rank)


def _add_whole(flat: torch.Tensor, place: World, first_rank: int) -> None:
    """Exchange the whole tensor at each distance, which takes half as many exchanges as `_add_halves`."""
    distance = 1
    while distance < place.size:
        theirs = torch.empty_like(flat)
        _swap(flat, theirs, first_rank + (place.rank ^ distance))
        _add_to(flat, theirs, is_upper=bool(place.rank & distance))
        distance *= 2


def _add_halves(flat: torch.Tensor, place: World, first_rank: int) -> None:
    """Exchange halves, quarters, …, and pass the sums back: each process sends no more than in a ring.

    Both partners of an exchange hold the same span; the lower process keeps its first half.
    """
    spans, low, high, distance = [], 0, flat.numel(), 1
    while distance < place.size:
        middle = (low + high) // 2
        kept, sent = ((middle, high), (low, middle)) if place.rank & distance else ((low, middle), (middle, high))
        theirs = flat.new_empty(kept[1] - kept[0])
        _swap(flat[sent[0] : sent[1]], theirs, first_rank + (place.rank ^ distance))
        _add_to(flat[kept[0] : kept[1]], theirs, is_upper=bool(place.rank & distance))
        spans.append((sent, distance))
        (low, high), distance = kept, distance * 2
    for sent, distance in reversed(spans):
        back = flat.new_empty(sent[1] - sent[0])
        _swap(flat[low:high], back, first_rank + (place.rank ^ distance))
        flat[sent[0] : sent[1]] = back
        low, high = min(low, sent[0]), max(high, sent[1])


def _add_to(mine: torch.Tensor, theirs: torch.Tensor, *, is_upper: bool) -> None:
    """Add in place, with the lower shards first: of two NaNs the first operand determines the bits."""
    torch.add(*((theirs, mine) if is_upper else (mine, theirs)), out=mine)


def _swap(mine: torch.Tensor, theirs: torch.Tensor, partner: int) -> None:
    """Send a tensor to another process and receive one from it; either may be empty."""
    sends = [point_to_point.To(mine, partner)] if mine.numel() else []
    receives = [point_to_point.To(theirs, partner)] if theirs.numel() else []
    point_to_point.Exchange(sends, receives, tag=TAG).wait()
