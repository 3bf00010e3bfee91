"""Collectives with gradients: they make one tensor of the ranks' parts, and give the gradients of one device.

A whole tensor is the same on every rank, and so is every result that is computed from it. DistributedDataParallel
takes the mean of the gradients over ranks, as if the training minimised the mean of the ranks' losses. So each part of
a loss is multiplied by the number of ranks. The backward of each collective is its exact adjoint: a sum over ranks for
a sum, and a sum with each rank's rows kept for a gather. So gradients are right however a whole tensor is used: by a
model that keeps it, by a function of the script, or in place, on any of the ranks.

`enter` makes the gradient of a whole tensor, as the script sees it (x.grad, hooks), the mean over ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..scaling_error import ScalingError
from .world import World, refuse_exchange

_MOST_DIMS = 8
_register_hook = torch.Tensor.register_hook  # the original: echelon's own hooks are not observed


class ExactError(Exception):
    """The whole of a global tensor is needed, but virtual shards are computed one by one."""

    is_told_briefly = True

    def __str__(self) -> str:
        return (
            "with --exact the script computes with the samples of a single shard, outside of a model and of a loss\n"
            "  way out: do this in one call of a model or of a loss function, or run without --exact"
        )


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, world: World) -> torch.Tensor:
        ctx.world = world
        return start_total(part.detach(), world)()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> object:
        return _Total.apply(gradients[0], ctx.world), None  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, world: World, rows: tuple[int, ...], dim: int) -> torch.Tensor:
        ctx.place = (world, rows, dim, part.size(dim))
        return _gathered(part.detach(), world, rows, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> object:
        world, rows, dim, size = ctx.place
        summed = _Total.apply(gradients[0], world)  # type: ignore[no-untyped-call]
        mine = own_rows(summed, world.rank, rows, dim)
        if mine.size(dim) < size:  # this rank has a placeholder row
            mine = torch.cat(
                [mine, mine.new_zeros(*(size if at == dim else each for at, each in enumerate(mine.shape)))], dim
            )
        return mine, None, None, None


def enter(whole: torch.Tensor, world: World) -> torch.Tensor:
    """Return a whole tensor for use in this rank's part; its gradient becomes the mean over ranks.

    Parameters stay as they are: the mean of their gradients is taken later. The result shares the elements of the
    whole, so that a model may change its input in place.
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
    _refuse_alone(world)
    result: torch.Tensor = _Total.apply(part, world)  # type: ignore[no-untyped-call]
    return result


def start_total(part: torch.Tensor, world: World) -> Callable[[], torch.Tensor]:
    """Start the sum of all ranks' parts, without gradients; return a function that waits for the sum."""
    _refuse_alone(world)
    result = part.clone()
    work = dist.all_reduce(result, async_op=True)

    def wait() -> torch.Tensor:
        work.wait()
        return result

    return wait


def gather(part: torch.Tensor, world: World, rows: Sequence[int], dim: int = 0) -> torch.Tensor:
    """Return the rows of all ranks, in the order of ranks; `rows` holds the number of rows of each rank."""
    _refuse_alone(world)
    _refuse_other_shapes(part, world, dim)
    result: torch.Tensor = _Gather.apply(part, world, tuple(rows), dim)  # type: ignore[no-untyped-call]
    return result


def own_rows(whole: torch.Tensor, rank: int, rows: Sequence[int], dim: int = 0) -> torch.Tensor:
    first = sum(rows[:rank])
    if whole.layout != torch.strided:
        places = torch.arange(first, first + rows[rank], device=whole.device)
        rows_of_it = whole.to_sparse(layout=torch.sparse_coo).index_select(dim, places)
        part: torch.Tensor = rows_of_it.to_sparse(layout=whole.layout)
        return part
    return whole.narrow(dim, first, rows[rank])


def gather_pieces(parts: Sequence[torch.Tensor], world: World, rows: Sequence[int], dim: int) -> torch.Tensor:
    """Gather the rows of all virtual shards, without gradients, from the parts of each process."""
    place = world.processes
    mine = [part.narrow(dim, 0, rows[world.rank + at]) for at, part in enumerate(parts)]
    by_process = [sum(rows[first : first + world.hosted]) for first in range(0, world.size, world.hosted)]
    joined = torch.cat(mine, dim)
    if place.size == 1:
        return joined
    _refuse_other_shapes(joined, place, dim)
    return _gathered(joined, place, tuple(by_process), dim)


def _refuse_alone(world: World) -> None:
    refuse_exchange()
    if world.is_exact:
        raise ExactError


def counts(number: int, world: World) -> tuple[int, ...]:
    _refuse_alone(world)
    numbers = [torch.zeros((), dtype=torch.int64, device=world.device) for _ in range(world.size)]
    dist.all_gather(numbers, torch.tensor(number, device=world.device))
    return tuple(int(one) for one in numbers)


def shapes(tensors_of_shards: Sequence[Sequence[torch.Tensor]], world: World) -> list[list[tuple[int, ...]]]:
    """Return the shape of each tensor on every rank, or in every virtual shard; pass the tensors of this process."""
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


def _gathered(part: torch.Tensor, world: World, rows: tuple[int, ...], dim: int) -> torch.Tensor:
    first = (part.transpose(0, dim) if dim else part)[: rows[world.rank]].contiguous().to(world.device)
    most, row_shape = max(rows), first.shape[1:]
    padded = first.new_zeros(most, *row_shape)
    padded[: first.size(0)] = first
    parts = [torch.empty_like(padded) for _ in rows]
    dist.all_gather([_as_bytes(one) for one in parts], _as_bytes(padded))
    whole = torch.cat([one[:num] for one, num in zip(parts, rows, strict=False)])
    return (whole.transpose(0, dim).contiguous() if dim else whole).to(part.device)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


def _refuse_other_shapes(part: torch.Tensor, world: World, dim: int) -> None:
    """Refuse parts that differ in another dim than `dim`, such as batches padded to their own longest sample."""
    for rank, shape in enumerate(shapes([[part]], world)[0]):
        if shape[:dim] + shape[dim + 1 :] != tuple(part.shape[:dim] + part.shape[dim + 1 :]):
            raise ScalingError(
                f"the ranks' parts of a tensor do not fit together: on rank {world.rank} its shape is "
                f"{tuple(part.shape)}, but on rank {rank} {shape}",
                "pad all samples to one length, or start one rank: echelon run -n 1 …",
            )
