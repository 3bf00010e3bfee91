"""Share the batches of one device among ranks."""

import copy
import gc
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from ..pytorch import internals
from .global_tensors import lists, pieces
from .global_tensors.model_calls import Unshared
from .global_tensors.numbered import OF_SAMPLES, Numbered, Numbering, shift
from .global_tensors.pieces import Pieces
from .global_tensors.tensors import Sharded, map_tensors, own_part, tensors_of
from .gradient_hooks import leaves_of
from .scaling_error import ScalingError
from .wire import messages
from .wire.world import World


def rows_of(size: int, num_ranks: int) -> tuple[int, ...]:
    """Return the number of samples of a batch on each rank; the numbers differ by one at most."""
    least, more = divmod(size, num_ranks)
    return tuple(least + (rank < more) for rank in range(num_ranks))


def twin_of(loader: object, **changes: object) -> Any:
    """Return a copy of a DataLoader with changed parts and with its own workers."""
    twin = copy.copy(loader)
    own = {internals.LOADER_ITERATOR: None}
    twin.__dict__.update(changes, **own)  # a loader forbids the assignment of these attributes
    return twin


def has_workers(loader: object) -> bool:
    return loader.__dict__.get(internals.LOADER_ITERATOR) is not None


def leave_workers() -> None:
    """Leave the loaders' workers to the parent process in a forked child: both share the workers' queues and events."""
    for instance in gc.get_objects():
        if issubclass(type(instance), internals.WorkersIterator):
            internals.leave_workers(instance)
        elif issubclass(type(instance), DataLoader):
            instance.__dict__[internals.LOADER_ITERATOR] = None


def of_indices(indices: list[object], rank: int, rows: Sequence[int]) -> list[Any]:
    """Return a rank's indices; a rank without samples gets the batch's first as a placeholder, which does not count."""
    first = sum(rows[:rank])
    return indices[first : first + rows[rank]] or indices[:1]


def length_of(batch: object) -> int:
    """Return the number of samples of a collated batch: the first dim of all tensors; 0 if they differ."""
    sizes = {one.size(0) for one in tensors_of(batch) if one.dim()}
    return sizes.pop() if len(sizes) == 1 else 0


def has_rows(batch: object, size: int) -> bool:
    """Say whether a collated batch can be split: each tensor has a row for each sample."""
    tensors = tensors_of(batch)
    return bool(tensors) and all(one.dim() and one.size(0) == size for one in tensors)


def of_whole(
    batch: object, world: World, rows: tuple[int, ...], of_lists: frozenset[lists.Path] = frozenset()
) -> Any:  # fmt: skip
    """Return the global tensors of a batch that every rank has whole; the lists of samples at some paths stay lists."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or (of_lists and tensor.size(0) != sum(rows)):
            return tensor
        if world.is_exact:  # each part in memory of its own: its alignment may change the bits
            return Pieces([Sharded(own_part(tensor, one.rank, rows).clone(), one, rows) for one in world.shards()])
        return Sharded(own_part(tensor, world.rank, rows), world, rows)

    return lists.show(map_tensors(lists.hide_at(batch, of_lists), change))


def of_shards(
    batches: list[object], world: World, rows: tuple[int, ...], *, may_be_ragged: bool, numbers: Numbering
) -> Any:
    """Return the global tensors of a batch whose virtual shards this process has loaded separately."""
    tensors = [[one for one in tensors_of(batch) if one.dim()] for batch in batches]
    counts = _all_counts(tensors, world, rows) if may_be_ragged else [rows] * len(tensors[0])
    shards = [
        map_tensors(batch, _viewing(own, counts, place, rows, numbers))
        for batch, own, place in zip(batches, tensors, world.shards(), strict=False)
    ]
    return _with_whole_lists(pieces.of(shards), world, rows, shards)


def of_parts(batch: object, world: World, rows: tuple[int, ...], *, may_be_ragged: bool, numbers: Numbering) -> Any:
    """Return a batch's global tensors, made of each rank's part; a collate function may change the rows."""
    tensors = [one for one in tensors_of(batch) if one.dim()]
    counts = _all_counts([tensors], world, rows) if may_be_ragged else [rows] * len(tensors)
    kept = counts[0] if counts and max(counts[0]) <= max(rows) else rows  # a collate function may drop samples
    return _with_whole_lists(map_tensors(batch, _viewing(tensors, counts, world, rows, numbers)), world, kept, [batch])


def _viewing(
    tensors: list[torch.Tensor],
    counts: list[tuple[int, ...]],
    world: World,
    rows: tuple[int, ...],
    numbers: Numbering,
) -> Callable[[torch.Tensor], torch.Tensor]:
    places = {id(tensor): place for place, tensor in enumerate(tensors)}

    def view(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim():
            return tensor
        place = places[id(tensor)]
        if place not in numbers:
            return Sharded(tensor, world, counts[place])
        num_samples = rows if numbers[place] == OF_SAMPLES else ()
        return Numbered(tensor, world, counts[place], shift(numbers[place], rows, counts, world.rank), num_samples)

    return view


def _all_counts(every: list[list[torch.Tensor]], world: World, rows: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return, for each tensor, the number of rows on every rank or shard; this process knows its own numbers."""
    mine = torch.tensor(
        [
            [one.size(0) if rows[place.rank] else 0 for one in tensors]
            for place, tensors in zip(world.shards(), every, strict=False)
        ],
        device=world.device,
    )
    gathered = [torch.empty_like(mine) for _ in range(world.processes.size)]
    dist.all_gather(gathered, mine)
    return [tuple(int(one) for one in column) for column in torch.cat(gathered).t().tolist()]


def _with_whole_lists(batch: Any, world: World, rows: tuple[int, ...], parts: list[Any]) -> Any:
    """Give lists, for example of names, an entry for each sample of the batch, on every rank.

    `parts` are the same places in the batches that this process has loaded: its own rows, or each of its shards.
    """
    if type(batch) is dict:
        return {key: _with_whole_lists(value, world, rows, [one[key] for one in parts]) for key, value in batch.items()}
    if type(batch) in (list, tuple):
        is_list_of_samples = len(batch) == max(1, rows[world.rank]) and not tensors_of(batch)
        if is_list_of_samples and not any(isinstance(one, (list, tuple, dict)) for one in batch):
            return type(batch)(_gathered_list(parts, world, rows))
        return type(batch)(
            _with_whole_lists(value, world, rows, [one[at] for one in parts]) for at, value in enumerate(batch)
        )
    return batch


def _gathered_list(parts: list[Any], world: World, rows: tuple[int, ...]) -> list[Any]:
    mine = [entry for one, place in zip(parts, world.shards(), strict=False) for entry in list(one)[: rows[place.rank]]]
    return [entry for part in messages.gather(mine) for entry in part]


_ONE_RANK = "start one rank: echelon run -n 1 …"
STEP_OF_NO_BATCH = (
    "nothing is shared: the script steps its optimizer without backward(), and takes no batch from a DataLoader with "
    "gradients on; each rank runs the whole script by itself"
)
"""What a person reads of a training of which ranks have no part."""


def is_batch(tensor: torch.Tensor, batch_sizes: set[int]) -> bool:
    """Say whether the first dim of a model's argument is the batch: the running loaders decide, or else its kind."""
    if batch_sizes:
        return tensor.size(0) in batch_sizes
    return tensor.dim() > 1 or not tensor.is_floating_point()


def refusal(loss: torch.Tensor, last: Unshared | None, num_ranks: int, has_optimizers: bool) -> ScalingError:
    """Return the error for a loss to which all ranks would contribute equally."""
    if not has_optimizers:
        return ScalingError(
            f"the script called backward(), but no optimizer of torch.optim has the weights ({_shapes_of(loss)}): the "
            "script changes them by hand, and each rank would use the gradient of only its own samples",
            "write optimizer = torch.optim.SGD(weights, lr=…) and optimizer.step() in place of w -= lr * "
            "w.grad; or " + _ONE_RANK,
        )
    if last is None:
        return ScalingError(
            "the script called backward(), but called no model: it called forward() directly, or functions "
            f"with the weights ({_shapes_of(loss)}); every rank would train on the same samples",
            "write model(x) in place of model.forward(x), and let a torch.nn.Module have the weights; or " + _ONE_RANK,
        )
    return _of_shape(last, num_ranks)


def _of_shape(last: Unshared, num_ranks: int) -> ScalingError:
    shape = last.shape
    if not shape:
        return ScalingError(
            f"the script called backward(), but called {last.model} without a batch: none of its tensors has a batch "
            "dimension, so every rank would train on the same samples",
            "call the model with the batch as an argument; or " + _ONE_RANK,
        )
    told = f"the script called {last.model} with a tensor of shape {shape}"
    if shape[0] == 1:
        return ScalingError(
            f"the batch has 1 sample, and {num_ranks} ranks cannot share it: {told}",
            f"use a batch of at least {num_ranks} samples, in the first dim; or {_ONE_RANK}",
        )
    if last.batch_sizes and shape[0] not in last.batch_sizes:
        sizes = " or ".join(map(str, sorted(last.batch_sizes)))
        return ScalingError(
            f"{told}, but the loader's batches have {sizes} samples: no dim of the tensor is the batch dimension",
            "put the samples in the first dim of the model's arguments; or give the model the whole list of samples, "
            "model(batch), and let it return a row for each; or " + _ONE_RANK,
        )
    if len(shape) == 1:
        return ScalingError(
            f"{told}: this is one sample, and {num_ranks} ranks cannot share it",
            "use a batch with the samples in the first dim, x.unsqueeze(0) for a single sample; or " + _ONE_RANK,
        )
    return ScalingError(
        f"the batch has {shape[0]} samples, but {num_ranks} ranks share it: {told}",
        f"use a larger batch, or at most {shape[0]} ranks: echelon run -n {shape[0]} …",
    )


def _shapes_of(loss: torch.Tensor) -> str:
    leaves = sorted(leaves_of(loss), key=lambda leaf: -leaf.numel())  # in an order that all ranks and runs share
    shapes = [str(tuple(leaf.shape)) for leaf in leaves]
    more = ", …" if len(shapes) > 3 else ""
    return "of shape {}{}".format(", ".join(shapes[:3]), more) if shapes else "of no shape"
