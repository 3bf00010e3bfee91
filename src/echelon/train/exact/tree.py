"""Sums whose bits do not depend on the number of processes: they follow one binary tree over all shards.

Neighbours are added first: (0+1), (2+3), then (0+1)+(2+3), and so on. A process holds neighbouring shards, and their
number is a power of two, so it begins with a whole subtree. Then the processes exchange their sums at doubling
distances; of large tensors they exchange halves.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ...pytorch import distributed
from ..scaling_error import as_of_library
from ..wire import messages
from ..wire.gather import TAG, is_sharded, whole
from ..wire.world import World

Tensors = Sequence[torch.Tensor | None]
SMALL_BYTES = 1 << 17
"""Up to this size an exchange takes no longer than its latency."""


class TreeSum:
    """The sum of the shards' tensors, which arrive in order; it keeps one partial sum for each level of the tree."""

    def __init__(self) -> None:
        self._levels: list[tuple[int, list[torch.Tensor | None]]] = []

    def add(self, tensors: Tensors) -> None:
        """Add the tensors of the next shard; None stands for a tensor that the shard does not have."""
        height, latest = 0, list(tensors)
        while self._levels and self._levels[-1][0] == height:
            _, before = self._levels.pop()
            latest = [_added(one, other) for one, other in zip(before, latest, strict=False)]
            height += 1
        self._levels.append((height, latest))

    @property
    def local(self) -> list[torch.Tensor | None]:
        """The sum of all shards that were added; their number must be a power of two."""
        ((_, tensors),) = self._levels
        return tensors


class SumByPlace:
    """The sum of the shards' tensors, which arrive in any order; each shard waits for the shards before it."""

    def __init__(self) -> None:
        self._sum = TreeSum()
        self._waiting: dict[int, Tensors] = {}
        self._next = 0

    def add(self, place: int, tensors: Tensors) -> None:
        self._waiting[place] = tensors
        while self._next in self._waiting:
            self._sum.add(self._waiting.pop(self._next))
            self._next += 1

    @property
    def local(self) -> list[torch.Tensor | None]:
        """The sum of all shards that were added; their number must be a power of two."""
        return self._sum.local


def _added(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    if first is None or second is None:
        present = second if first is None else first
        return None if present is None else present + 0.0  # a process too adds zeros for a tensor that it lacks
    return first.add_(second)


def total(tensors_of_shards: Sequence[Sequence[torch.Tensor]], world: World) -> list[torch.Tensor]:
    """Return the sums over all shards of all processes."""
    tree_sum = TreeSum()
    for tensors in tensors_of_shards:
        tree_sum.add([one.clone() for one in tensors])
    local = [one for one in tree_sum.local if one is not None]
    return [one for one in across(local, local, world) if one is not None]


def across(
    tensors: Tensors, likes: Sequence[torch.Tensor], world: World, first_rank: int = 0
) -> list[torch.Tensor | None]:
    """Return the sums over all processes of their tensors; None stands for a tensor that no process has.

    `likes` are tensors of the same shapes and dtypes, for tensors that this process lacks. If the processes are not all
    ranks, they are neighbours from `first_rank` on.
    """
    place = world.processes
    if place.size == 1:
        return list(tensors)
    results: list[torch.Tensor | None] = [None] * len(tensors)
    for dtype in sorted({one.dtype for one in likes}, key=str):
        places = [at for at, one in enumerate(likes) if one.dtype is dtype]
        flat = _flat([tensors[at] for at in places], [likes[at] for at in places], dtype)
        add_across(flat, place, first_rank)
        known, offset = flat[: len(places)].tolist(), len(places)
        for at, count in zip(places, known, strict=False):
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
              for one, like in zip(tensors, likes, strict=False)]  # fmt: skip
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
    sends = [messages.To(mine, partner)] if mine.numel() else []
    receives = [messages.To(theirs, partner)] if theirs.numel() else []
    messages.TensorExchange(sends, receives, tag=TAG).wait()


class WeightGradients:
    """Take the gradients of one backward pass out of the parameters, and put their sums in."""

    def __init__(self, parameters: Sequence[nn.Parameter], roots: Sequence[nn.Module] = ()) -> None:
        self.parameters = parameters
        self._spread = _unsharded(roots)
        self._before: list[torch.Tensor | None] = []
        self._sparse: set[int] = set()
        self._rows = [own_rows(one) if is_sharded(one) else None for one in parameters]
        self.likes = [_like(one) for one in parameters]
        """Tensors with the shapes and dtypes of whole gradients."""

    def set_aside(self) -> None:
        """Keep the gradients of earlier passes, and clear the parameters' gradients."""
        self._before = [one.grad for one in self.parameters]
        self.take()

    def take(self) -> list[torch.Tensor | None]:
        gradients = []
        for parameter in self.parameters:
            group = self._spread.get(id(parameter))
            gradient = parameter.grad if group is None else distributed.take_whole_gradient(group)
            if gradient is not None and gradient.is_sparse:
                self._sparse.add(id(parameter))
                gradient = gradient.to_dense()  # rows that several shards touch are added in the tree's order
            gradients.append(gradient)
            parameter.grad = None
        return gradients

    def pass_whole(self, run: Callable[[], None]) -> None:
        self.set_aside()
        run()
        for parameter, old in zip(self.parameters, self._before, strict=False):
            new: Any = parameter.grad
            if new is not None and is_sharded(new):  # its placement may differ from the parameter's
                new = new.redistribute(new.device_mesh, parameter.placements)  # type: ignore[attr-defined]
            parameter.grad = new if old is None else old if new is None else old.add_(new)

    def put(self, sums: Sequence[torch.Tensor | None]) -> list[bool]:
        """Add whole gradients to those set aside; return for each weight whether none was set aside."""
        for parameter, rows, old, new in zip(self.parameters, self._rows, self._before, sums, strict=False):
            part = new if new is None or rows is None else _own_part(new, parameter, rows)
            if part is not None and id(parameter) in self._sparse:
                part = part.to_sparse(1)
            parameter.grad = part if old is None else old if part is None else old.add_(part)
        return [old is None for old in self._before]


def _like(parameter: nn.Parameter) -> torch.Tensor:
    if not is_sharded(parameter):
        return parameter.detach()
    return torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)


def _unsharded(roots: Sequence[nn.Module]) -> dict[int, object]:
    """Return fully_shard's own record of each weight, by the identity of the parameter that a rank keeps.

    Gradient synchronisation is turned off, so a pass leaves whole gradients in the record
    (FSDPParam.unsharded_accumulated_grad).
    """
    records = {}
    for root in roots:
        root.set_requires_gradient_sync(False)  # type: ignore[operator]
        for module in root.modules():
            for record in distributed.fully_sharded_weights(module):
                records[id(record.sharded_param)] = record
    return records


def own_rows(parameter: Any) -> slice:
    size = parameter.size(0)
    rows = slice(0, size)
    for axis, placement in enumerate(parameter.placements):
        if placement.is_shard():  # otherwise each rank of this axis keeps the same rows
            num_rows = -(-size // parameter.device_mesh.size(axis))  # as Shard(0) cuts; the last ranks may have nothing
            first = min(num_rows * parameter.device_mesh.get_local_rank(axis), size)
            rows = slice(first, min(first + num_rows, size))
    return rows


def _own_part(gradient: torch.Tensor, parameter: Any, rows: slice) -> Any:
    """Return this rank's rows of a whole gradient, as a DTensor with the parameter's placement."""
    from torch.distributed.tensor import DTensor

    local = gradient[rows].to(parameter.device, copy=True)
    # as fully_shard makes them; DTensor.from_local() is slower
    return DTensor(local, parameter._spec, requires_grad=False)  # type: ignore[no-untyped-call]


def clip_by_whole_norm(
    parameters: Any,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    **_foreach: object,
) -> torch.Tensor:
    """Clip as torch.nn.utils.clip_grad_norm_ does, by a norm that does not depend on the sharding of the gradients."""
    parameter_list = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    gradients: list[Any] = [one.grad for one in parameter_list if one.grad is not None]
    norms = [torch.linalg.vector_norm(whole(one), norm_type) for one in gradients]  # gather one gradient at a time
    total = torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else torch.tensor(0.0)
    if error_if_nonfinite and not bool(torch.isfinite(total)):
        raise as_of_library(RuntimeError(f"the total norm of order {norm_type} for gradients is non-finite"))
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for gradient in gradients:
        local = gradient.to_local() if is_sharded(gradient) else gradient
        local.mul_(factor.to(local.device))
    return total
