"""Make one tensor of the parts that the ranks hold, so that gradients come out as on one device.

What is whole is the same on every rank, and so is what is computed from it. Gradients are the mean over ranks in the
end (DistributedDataParallel), and a part is needed by its own rank alone: on its way back into a part a gradient is
multiplied by the number of ranks. What never was in parts, such as a penalty on the weights, is equal on all ranks,
and the mean leaves it as it is. What is whole and used for a part, such as a mean that is taken off each sample, gets
from every rank the gradient of that part, and needs their mean.
"""

from typing import Any, Callable, List, Sequence, Tuple

import torch
import torch.distributed as dist

from ..refusal import Refusal
from ..world import World

_MOST_DIMS = 8


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, num_ranks: int) -> torch.Tensor:
        ctx.num_ranks = num_ranks
        return start_total(part.detach())()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] * ctx.num_ranks, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, world: World, rows: Tuple[int, ...], dim: int) -> torch.Tensor:
        ctx.place = (world, rows, dim, part.size(dim))
        return _gathered(part.detach(), world, rows, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        world, rows, dim, size = ctx.place
        mine = own_rows(gradients[0], world.rank, rows, dim) * world.size
        if mine.size(dim) < size:  # a sample that stands in for none
            mine = torch.cat(
                [mine, mine.new_zeros(*(size if at == dim else each for at, each in enumerate(mine.shape)))], dim
            )
        return mine, None, None, None


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, num_ranks: int) -> torch.Tensor:
        ctx.num_ranks = num_ranks
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return _Total.apply(gradients[0], ctx.num_ranks) / ctx.num_ranks, None  # type: ignore[no-untyped-call]


def enter(whole: torch.Tensor, world: World) -> torch.Tensor:
    """Return what is the same on all ranks, to be used for this rank's part; weights get their mean later anyway."""
    if whole.is_leaf or not torch.is_grad_enabled():
        return whole
    result: torch.Tensor = _Enter.apply(whole, world.size)  # type: ignore[no-untyped-call]
    return result


def total(part: torch.Tensor, world: World) -> torch.Tensor:
    """Return the sum of all ranks' parts."""
    result: torch.Tensor = _Total.apply(part, world.size)  # type: ignore[no-untyped-call]
    return result


def start_total(part: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Begin the sum of all ranks' parts, without gradients; return what waits for it."""
    result = part.clone()
    work = dist.all_reduce(result, async_op=True)

    def wait() -> torch.Tensor:
        work.wait()
        return result

    return wait


def gather(part: torch.Tensor, world: World, rows: Sequence[int], dim: int = 0) -> torch.Tensor:
    """Return the rows of all ranks, in the order of ranks; `rows` says how many each has."""
    _refuse_other_shapes(part, world, dim)
    result: torch.Tensor = _Gather.apply(part, world, tuple(rows), dim)  # type: ignore[no-untyped-call]
    return result


def own_rows(whole: torch.Tensor, rank: int, rows: Sequence[int], dim: int = 0) -> torch.Tensor:
    """Return the rows of one rank."""
    return whole.narrow(dim, sum(rows[:rank]), rows[rank])


def counts(number: int, world: World) -> Tuple[int, ...]:
    """Return every rank's number."""
    found = [torch.zeros((), dtype=torch.int64, device=world.device) for _ in range(world.size)]
    dist.all_gather(found, torch.tensor(number, device=world.device))
    return tuple(int(one) for one in found)


def shapes(tensors: Sequence[torch.Tensor], world: World) -> List[List[Tuple[int, ...]]]:
    """Return, of each tensor, the shape that it has on every rank."""
    mine = torch.tensor(
        [[one.dim(), *one.shape, *[0] * _MOST_DIMS][: 1 + _MOST_DIMS] for one in tensors], device=world.device
    )
    found = [torch.empty_like(mine) for _ in range(world.size)]
    dist.all_gather(found, mine)
    by_rank = [one.tolist() for one in found]
    return [
        [tuple(words[at][1 : 1 + words[at][0]]) for words in by_rank]
        for at in range(len(tensors))
    ]  # fmt: skip


def _gathered(part: torch.Tensor, world: World, rows: Tuple[int, ...], dim: int) -> torch.Tensor:
    """Send bytes: then any dtype will do; and as many from each rank."""
    first = (part.transpose(0, dim) if dim else part)[: rows[world.rank]].contiguous().to(world.device)
    most, row_shape = max(rows), first.shape[1:]
    padded = first.new_zeros(most, *row_shape)
    padded[: first.size(0)] = first
    found = [torch.empty_like(padded) for _ in rows]
    dist.all_gather([_as_bytes(one) for one in found], _as_bytes(padded))
    whole = torch.cat([one[:num] for one, num in zip(found, rows)])  # noqa: B905
    return (whole.transpose(0, dim).contiguous() if dim else whole).to(part.device)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


def _refuse_other_shapes(part: torch.Tensor, world: World, dim: int) -> None:
    """Tell ranks whose parts differ in another dim, as batches do that are padded to their own longest sample."""
    for rank, shape in enumerate(shapes([part], world)[0]):
        if shape[:dim] + shape[dim + 1 :] != tuple(part.shape[:dim] + part.shape[dim + 1 :]):
            raise Refusal(
                "the parts of a batch do not fit together: of one tensor rank %d has the shape %s, and rank %d %s"
                % (world.rank, tuple(part.shape), rank, shape),
                "pad all samples to one length, or start one rank: echelon run -n 1 …",
            )
