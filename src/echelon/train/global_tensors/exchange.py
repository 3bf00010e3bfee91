"""Make one tensor of the parts that the ranks hold, so that gradients come out as on one device.

What is whole is the same on every rank, and so is what is computed from it. Gradients are the mean over ranks in the
end (DistributedDataParallel), as if the training minimised the mean of what each rank calls its loss. A part of a
loss counts as often as there are ranks, and a message goes back as the exact adjoint of how it went: a sum over ranks
as a sum, a gather as a sum of which each rank keeps its rows. So it does not matter on which ways a whole is used, by
which ranks, or whether anybody has seen it: by a model that keeps it, by a function of the script, or in place.

`enter` is for who looks at the gradient of a whole tensor on its way (x.grad, hooks): each rank then has the mean.
"""

from typing import Any, Callable, List, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import nn

from .. import single_rank
from ..scaling_error import ScalingError
from ..world import World

_MOST_DIMS = 8
_register_hook = torch.Tensor.register_hook  # itself: a hook of ours is no witness


class Needed(Exception):
    """A shard is computed by itself, and needs what another has."""


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, world: World) -> torch.Tensor:
        ctx.world = world
        return start_total(part.detach(), world)()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return _Total.apply(gradients[0], ctx.world), None  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, world: World, rows: Tuple[int, ...], dim: int) -> torch.Tensor:
        ctx.place = (world, rows, dim, part.size(dim))
        return _gathered(part.detach(), world, rows, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        world, rows, dim, size = ctx.place
        summed = _Total.apply(gradients[0], world)  # type: ignore[no-untyped-call]
        mine = own_rows(summed, world.rank, rows, dim)
        if mine.size(dim) < size:  # a sample that stands in for none
            mine = torch.cat(
                [mine, mine.new_zeros(*(size if at == dim else each for at, each in enumerate(mine.shape)))], dim
            )
        return mine, None, None, None


def enter(whole: torch.Tensor, world: World) -> torch.Tensor:
    """Return what is the same on all ranks, to be used for this rank's part; weights get their mean later anyway.

    It is another view of the same elements, so that a model may change its input in place.
    """
    if isinstance(whole, nn.Parameter) or not torch.is_grad_enabled() or not whole.requires_grad:
        return whole
    if world.is_exact:
        leaf: torch.Tensor = world.graph_cuts.cut(whole, world.rank)
        return leaf
    result = whole.view_as(whole)
    _register_hook(result, lambda gradient: _Total.apply(gradient, world) / world.size)  # type: ignore[no-untyped-call]
    return result


def total(part: torch.Tensor, world: World) -> torch.Tensor:
    """Return the sum of all ranks' parts."""
    _refuse_alone(world)
    result: torch.Tensor = _Total.apply(part, world)  # type: ignore[no-untyped-call]
    return result


def start_total(part: torch.Tensor, world: World) -> Callable[[], torch.Tensor]:
    """Begin the sum of all ranks' parts, without gradients; return what waits for it."""
    _refuse_alone(world)
    result = part.clone()
    work = dist.all_reduce(result, async_op=True)

    def wait() -> torch.Tensor:
        work.wait()
        return result

    return wait


def gather(part: torch.Tensor, world: World, rows: Sequence[int], dim: int = 0) -> torch.Tensor:
    """Return the rows of all ranks, in the order of ranks; `rows` says how many each has."""
    _refuse_alone(world)
    _refuse_other_shapes(part, world, dim)
    result: torch.Tensor = _Gather.apply(part, world, tuple(rows), dim)  # type: ignore[no-untyped-call]
    return result


def own_rows(whole: torch.Tensor, rank: int, rows: Sequence[int], dim: int = 0) -> torch.Tensor:
    """Return the rows of one rank."""
    first = sum(rows[:rank])
    if whole.layout != torch.strided:
        places = torch.arange(first, first + rows[rank], device=whole.device)
        rows_of_it = whole.to_sparse(layout=torch.sparse_coo).index_select(dim, places)
        part: torch.Tensor = rows_of_it.to_sparse(layout=whole.layout)
        return part
    return whole.narrow(dim, first, rows[rank])


def gather_pieces(parts: Sequence[torch.Tensor], world: World, rows: Sequence[int], dim: int) -> torch.Tensor:
    """Return the rows of all shards, without gradients, of the parts that this process has."""
    place = world.processes
    mine = [part.narrow(dim, 0, rows[world.rank + at]) for at, part in enumerate(parts)]
    by_process = [sum(rows[first : first + world.hosted]) for first in range(0, world.size, world.hosted)]
    joined = torch.cat(mine, dim)
    if place.size == 1:
        return joined
    _refuse_other_shapes(joined, place, dim)
    return _gathered(joined, place, tuple(by_process), dim)


def _refuse_alone(world: World) -> None:
    single_rank.refuse_exchange()
    if world.is_exact:
        raise Needed


def counts(number: int, world: World) -> Tuple[int, ...]:
    """Return every rank's number."""
    _refuse_alone(world)
    numbers = [torch.zeros((), dtype=torch.int64, device=world.device) for _ in range(world.size)]
    dist.all_gather(numbers, torch.tensor(number, device=world.device))
    return tuple(int(one) for one in numbers)


def shapes(tensors_of_shards: Sequence[Sequence[torch.Tensor]], world: World) -> List[List[Tuple[int, ...]]]:
    """Return, of each tensor, its shape on every rank, or in every shard; given are those of this process."""
    mine = torch.tensor(
        [[[one.dim(), *one.shape, *[0] * _MOST_DIMS][: 1 + _MOST_DIMS] for one in tensors]
         for tensors in tensors_of_shards], device=world.device,
    )  # fmt: skip
    rank_shapes = [torch.empty_like(mine) for _ in range(world.processes.size)]
    dist.all_gather(rank_shapes, mine)
    by_rank = [words for one in rank_shapes for words in one.tolist()]
    return [
        [tuple(words[at][1 : 1 + words[at][0]]) for words in by_rank]
        for at in range(len(tensors_of_shards[0]))
    ]  # fmt: skip


def _gathered(part: torch.Tensor, world: World, rows: Tuple[int, ...], dim: int) -> torch.Tensor:
    """Send bytes: then any dtype will do; and as many from each rank."""
    first = (part.transpose(0, dim) if dim else part)[: rows[world.rank]].contiguous().to(world.device)
    most, row_shape = max(rows), first.shape[1:]
    padded = first.new_zeros(most, *row_shape)
    padded[: first.size(0)] = first
    parts = [torch.empty_like(padded) for _ in rows]
    dist.all_gather([_as_bytes(one) for one in parts], _as_bytes(padded))
    whole = torch.cat([one[:num] for one, num in zip(parts, rows)])  # noqa: B905
    return (whole.transpose(0, dim).contiguous() if dim else whole).to(part.device)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


def _refuse_other_shapes(part: torch.Tensor, world: World, dim: int) -> None:
    """Tell ranks whose parts differ in another dim, as batches do that are padded to their own longest sample."""
    for rank, shape in enumerate(shapes([[part]], world)[0]):
        if shape[:dim] + shape[dim + 1 :] != tuple(part.shape[:dim] + part.shape[dim + 1 :]):
            raise ScalingError(
                "the ranks' parts of a tensor do not fit together: on rank %d its shape is %s, but on rank %d "
                "%s" % (world.rank, tuple(part.shape), rank, shape),
                "pad all samples to one length, or start one rank: echelon run -n 1 …",
            )
