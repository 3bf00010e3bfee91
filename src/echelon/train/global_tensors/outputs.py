"""The outputs of a model for this rank's rows, as global tensors of its outputs for the whole batch.

All ranks must make the same global tensors. They exchange the shapes of their outputs in the first calls of a model,
and wherever ranks have unequal numbers of rows. In later calls a rank assumes that all ranks have outputs of its own
shapes, as long as these shapes are of the same kind as in earlier calls.
"""

import weakref
from typing import Any

import torch
from torch import nn

from ..scaling_error import ScalingError
from ..wire import exchange, messages
from ..wire.world import World
from . import pieces, returned_numbers
from .tensors import GlobalTensor, Partial, Sharded, map_tensors, tensors_of

NUM_EXCHANGED = 3
"""The number of calls of a model in which ranks exchange output shapes though all have equally many rows."""
RAGGED, SAME = "ragged", "the same on all ranks"
_Shapes = list[tuple[int, ...]]
"""The shapes of one output, on every rank or in every virtual shard."""


class _Earlier:
    """The outputs of a model in earlier calls."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.kinds: list[str] = []
        self.ragged: set[int] = set()
        """Outputs whose number of rows depends on the samples."""
        self.tried: set[int] = set()
        """Outputs of which two parts of a batch have shown whether they are such rows."""
        self.is_open = True
        """Whether ranks exchange shapes in the next call too: the other shapes do not follow from this rank's own."""


_earlier_of: "weakref.WeakKeyDictionary[nn.Module, dict[Any, _Earlier]]" = weakref.WeakKeyDictionary()


def ragged_of(module: nn.Module) -> list[object]:
    """Return, as plain data, which outputs of a module have as many rows as the samples ask for."""
    return [[*key, *sorted(one.ragged)] for key, one in _earlier_of.get(module, {}).items() if one.ragged]


def put_ragged(module: nn.Module, known: list[Any]) -> None:
    """Know such outputs from an earlier process: the next batch may select equally many rows on all ranks by chance."""
    for is_training, has_gradients, *places in known:
        earlier = _earlier_of.setdefault(module, {}).setdefault((is_training, has_gradients), _Earlier())
        earlier.ragged.update(places)


def leave(
    module: nn.Module, outputs: list[Any], leads: list[list[Sharded]],
    call: returned_numbers.ModelCall | None = None, *, is_trained_alone: bool = False,
) -> Any:  # fmt: skip
    """Return a model's outputs for the rows of this rank, or of its virtual shards, as global tensors of all rows.

    `call` can compute some rows again, where the shapes leave open what an output is. Ranks that train alone between
    meetings exchange nothing while they have equally many rows.
    """
    tensors = [distinct(output) for output in outputs]
    world = leads[0][0].world
    earlier = _earlier_of.setdefault(module, {}).setdefault((module.training, torch.is_grad_enabled()), _Earlier())
    if is_trained_alone and _are_even(leads):
        every = [[tuple(tensor.shape)] * world.size for tensor in tensors[0]]
    else:
        every = _shapes_of_all(module, earlier, tensors, leads)
        _try_parts(earlier, tensors[-1], every, call)
    global_outputs = []
    for output, own, lead in zip(outputs, tensors, leads, strict=False):
        global_tensor_of = {}
        for place, (tensor, shapes) in enumerate(zip(own, every, strict=False)):
            as_global = _ragged if place in earlier.ragged else _view
            global_tensor_of[id(tensor)] = as_global(module, tensor, shapes, lead)
        global_outputs.append(map_tensors(output, lambda tensor: global_tensor_of.get(id(tensor), tensor)))  # noqa: B023
    return pieces.of(global_outputs) if world.is_exact else global_outputs[0]


def distinct(output: object) -> list[torch.Tensor]:
    """Return the tensors that a model returns, each once."""
    plain = (tensor for tensor in tensors_of(output) if not isinstance(tensor, (GlobalTensor, nn.Parameter)))
    return list({id(tensor): tensor for tensor in plain}.values())


def _shapes_of_all(
    module: nn.Module, earlier: _Earlier, tensors: list[list[torch.Tensor]], leads: list[list[Sharded]]
) -> list[_Shapes]:
    """Return the shape of each output on every rank."""
    world = leads[0][0].world
    earlier.num_calls += 1
    if earlier.num_calls <= NUM_EXCHANGED:
        _refuse_other_numbers(module, tensors, world)
    if not tensors[0]:
        return []
    has_kinds = earlier.num_calls > NUM_EXCHANGED and len(earlier.kinds) == len(tensors[0])
    if earlier.is_open or not has_kinds or not _are_even(leads):
        every = exchange.shapes(tensors, world)
        kinds = [_kind(shapes, leads[0]) for shapes in every]
        _refuse_whole_batches(module, earlier.kinds, kinds, every, leads[0][0])
        earlier.kinds = kinds
        earlier.ragged.update(place for place, kind in enumerate(earlier.kinds) if kind == RAGGED)
        has_other_rows = any(kind == SAME and shapes[0] for kind, shapes in zip(earlier.kinds, every, strict=False))
        earlier.is_open = bool(earlier.ragged) or has_other_rows
        return every
    every = [[tuple(tensor.shape)] * world.size for tensor in tensors[0]]
    for shapes, before in zip(every, earlier.kinds, strict=False):
        if _kind(shapes, leads[0]) != before:
            raise _refusal(module, f"a tensor of shape {shapes[0]}, but the shapes before were of another kind")
    return every


def _try_parts(
    earlier: _Earlier, tensors: list[torch.Tensor], every: list[_Shapes], call: returned_numbers.ModelCall | None
) -> None:
    """Find rows that a model selects, where all ranks have equally many by chance, by two parts of this rank's rows.

    The numbers of rows of the two parts add up; a tensor that has no rows of samples has one shape for each part.
    """
    if call is None:
        return
    same = [place for place, shapes in enumerate(every) if earlier.kinds[place] == SAME and shapes[0] and shapes[0][0]]
    places = [place for place in same if place not in earlier.ragged | earlier.tried]
    if not places:
        return
    earlier.tried.update(places)
    both = returned_numbers.of_two(call)
    selected = []
    if both is not None:
        first, rest = (distinct(part) for part in both)
        selected = [
            place for place in places if _num_rows(first, place) + _num_rows(rest, place) == _num_rows(tensors, place)
        ]
    earlier.ragged.update(place for of_rank in messages.gather(selected) for place in of_rank)


def _num_rows(tensors: list[torch.Tensor], place: int) -> int:
    return tensors[place].size(0) if place < len(tensors) and tensors[place].dim() else -1


def _refuse_whole_batches(
    module: nn.Module, before: list[str], kinds: list[str], every: list[_Shapes], lead: Sharded
) -> None:
    """Refuse an output that has a row for each sample on every rank, where a rank has a single sample.

    The model may return several rows for each sample, or add a tensor of the whole batch that it keeps to one sample.
    """
    num_samples = sum(lead.rows)
    if max(lead.rows) > 1 or num_samples < 2:
        return
    for place, (kind, shapes) in enumerate(zip(kinds, every, strict=False)):
        was_told = len(before) == len(kinds) and before[place] == "tokens"
        if kind == "tokens" and not was_told and _ratio(shapes, lead) == num_samples:
            raise ScalingError(
                f"{type(module).__name__} returns {num_samples} rows on a rank that has 1 of "
                f"{num_samples} samples; echelon cannot tell whether these are rows of "
                "that sample, or of a tensor of the whole batch that the model keeps",
                "use a larger batch, or pass each tensor of the batch to the model as an argument; "
                "or start one rank: echelon run -n 1 …",
            )


def _are_even(leads: list[list[Sharded]]) -> bool:
    return all(len(set(lead.rows)) == 1 for lead in leads[0])


def _refuse_other_numbers(module: nn.Module, tensors: list[list[torch.Tensor]], world: World) -> None:
    """Refuse a model that returns more tensors on some ranks than on others, such as one for each sample."""
    counts = [[torch.empty(len(own), device="meta")] for own in tensors]
    numbers = sorted({shape[0] for shape in exchange.shapes(counts, world)[0]})
    if len(numbers) > 1:
        raise _refusal(module, "{} tensors, by rank".format(" or ".join(map(str, numbers))))


def _kind(shapes: _Shapes, leads: list[Sharded]) -> str:
    """Return how an output's shapes follow from the numbers of rows; ranks must agree on this kind."""
    for dim in range(len(shapes[0])):
        if any(_has_rows(shapes, dim, lead) for lead in leads):
            return f"rows in dim {dim}"
    if len(set(shapes)) > 1:
        return RAGGED
    return "tokens" if _ratio(shapes, leads[0]) else SAME


def _has_rows(shapes: _Shapes, dim: int, lead: Sharded) -> bool:
    sizes = [max(num_rows, 1) for num_rows in lead.rows]
    return all(len(shape) > dim and shape[dim] == size for shape, size in zip(shapes, sizes, strict=False))


def _ratio(shapes: _Shapes, lead: Sharded) -> int:
    """Return the number of rows for each sample; 0 where it is no whole number."""
    if not shapes[0]:
        return 0
    ratio = shapes[0][0] // max(lead.rows[0], 1)
    is_ratio = all(shape[0] == ratio * max(num_rows, 1) for shape, num_rows in zip(shapes, lead.rows, strict=False))
    return ratio if is_ratio else 0


def _view(_module: nn.Module, tensor: torch.Tensor, shapes: _Shapes, leads: list[Sharded]) -> torch.Tensor:
    for dim in range(tensor.dim()):
        for lead in leads:
            if _has_rows(shapes, dim, lead):
                return Sharded(tensor, lead.world, lead.rows, dim)
    lead = leads[0]
    world = lead.world
    ratio = _ratio(shapes, lead)
    if ratio:
        return Sharded(tensor, world, [num_rows * ratio for num_rows in lead.rows])  # rows of tokens, say
    fraction = lead.rows[world.rank] / sum(lead.rows)
    if tensor.is_floating_point():  # a mean over samples, such as a loss; or equal on all ranks
        return Partial(tensor * fraction, world, fraction)
    return tensor


def _ragged(module: nn.Module, tensor: torch.Tensor, shapes: _Shapes, leads: list[Sharded]) -> torch.Tensor:
    """Return rows that a model selects from its samples as a global tensor, in the order of the samples."""
    lead = leads[0]
    has_rows = all(shape and shape[0] for shape in shapes) and min(lead.rows) > 0
    if not has_rows or len({shape[1:] for shape in shapes}) > 1:
        told = "tensors of other shapes on other ranks: {}".format(", ".join(map(str, dict.fromkeys(shapes))))
        raise _refusal(module, told)
    return Sharded(tensor, lead.world, [shape[0] for shape in shapes])


def _refusal(module: nn.Module, told: str) -> ScalingError:
    return ScalingError(
        f"{type(module).__name__} returns {told}; the number of rows depends on the samples",
        "return a row for each sample and select rows outside the model, or compute the loss inside the model; "
        "or start one rank: echelon run -n 1 …",
    )
