"""Save whole and plain states as one device would, and load states that one device or any strategy saved."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ...checkpoint import safetensors
from ...checkpoint.errors import FormatError
from ...pytorch import distributed
from ..wire import messages
from ..wire.gather import each_whole, is_dtensor
from . import blocks, norms
from .axes import Axes
from .strategy import StrategyError

NUM_NAMED = 5


class TensorOwner(NamedTuple):
    """One tensor of the whole model, and which rank of the pipeline has it."""

    stage_rank: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def named(parts: Sequence[nn.Module]) -> dict[str, object]:
    tensors: dict[str, Any] = {}
    for part in parts:
        for name, value in part.state_dict(keep_vars=True).items():
            if isinstance(value, torch.Tensor):
                tensors[blocks.plain_name(name)] = value
    return tensors


def part_of(tensor: torch.Tensor, like: Any) -> torch.Tensor:
    """Return this rank's part of a whole tensor, without communication."""
    if not is_dtensor(like):
        return tensor
    shape, offset = distributed.part_of(tensor.shape, like.device_mesh, like.placements)
    return tensor[tuple(slice(first, first + size) for first, size in zip(offset, shape, strict=False))]


def gather(local: Mapping[str, object], axes: Axes, order: Sequence[str], spool: str = "") -> dict[str, torch.Tensor]:
    """Return all tensors whole, on the main rank and in the host's memory; return nothing on other ranks.

    With `spool`, a file of this name has them, and they are mapped.
    """
    if spool:
        write(spool, local, axes, order)
        return {} if axes.world.rank else safetensors.read(spool)
    entries = _entries(local, axes, order)
    return {name: value.cpu().clone() for name, value in zip(entries, _wholes(local, entries, axes), strict=False)}


def write(path: str, local: Mapping[str, object], axes: Axes, order: Sequence[str]) -> None:
    """Write all tensors whole into a safetensors file; the main rank holds only a few of them at a time.

    Every rank must call it; the main rank writes.
    """
    entries = _entries(local, axes, order)
    names = sorted(entries, key=lambda name: -entries[name].dtype.itemsize)  # then all are aligned
    wholes = _wholes(local, {name: entries[name] for name in names}, axes)
    if axes.world.rank:
        for _ in wholes:
            pass  # this rank takes part in bringing them to the main rank
        return
    specs = [safetensors.Spec(name, entries[name].dtype, entries[name].shape) for name in names]
    with open(path, "wb") as file:
        safetensors.write_stream(file, specs, wholes)


def _wholes(local: Mapping[str, Any], entries: Mapping[str, TensorOwner], axes: Axes) -> Iterator[torch.Tensor]:
    """Yield the whole tensors in the order of the entries on the main rank; elsewhere, take part."""
    mine = each_whole([local[name] for name in entries if name in local])
    for name, entry in entries.items():
        value = _from_stage(next(mine) if name in local else None, entry, axes)
        if axes.world.rank == 0 and value is not None:
            yield value


def _entries(local: Mapping[str, Any], axes: Axes, order: Sequence[str]) -> dict[str, TensorOwner]:
    mine = {name: TensorOwner(axes.place("pipeline"), tuple(value.shape), value.dtype) for name, value in local.items()}
    mine = {name: entry for part in reversed(axes.of_all_stages(mine)) for name, entry in part.items()}
    known = {name: place for place, name in enumerate(order)}
    return dict(sorted(mine.items(), key=lambda item: (known.get(item[0], len(known)), item[0])))


def _from_stage(value: Any, entry: TensorOwner, axes: Axes) -> Any:
    source = axes.rank_at_stage(entry.stage_rank)
    if source == 0 or axes.world.rank not in (0, source):
        return value
    if axes.world.rank == source:
        messages.send_tensors(value, 0)
        return None
    value = torch.empty(entry.shape, dtype=entry.dtype, device=axes.world.device)
    messages.receive_tensors(value, source)
    return value


def fill(local: Mapping[str, Any], state: Mapping[str, torch.Tensor], order: Sequence[str]) -> None:
    """Copy whole tensors into this rank's parts; refuse names and shapes that are not the model's."""
    state = {blocks.plain_name(name): value for name, value in state.items()}
    _refuse_names([name for name in local if name not in state], "the state lacks %s")
    _refuse_names([name for name in state if name not in set(order)], "the state has %s, but the model does not")
    for name, target in local.items():
        if tuple(state[name].shape) != tuple(target.shape):
            raise StrategyError(
                f"{name} has the shape {tuple(state[name].shape)} in the state, but {tuple(target.shape)} in the model",
                hint="load the state of the same model",
            )
        with torch.no_grad():
            norms.local(target).detach().copy_(part_of(state[name], target))


def _refuse_names(names: list[str], reason: str) -> None:
    if names:
        more = f" and {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else ""
        raise StrategyError(reason % (", ".join(names[:NUM_NAMED]) + more), hint="load the state of the same model")


State = str | Mapping[str, torch.Tensor]


def read(state: State) -> Mapping[str, torch.Tensor]:
    """Return a state by name, from a mapping or a file; a file is mapped, so that a rank reads only its parts."""
    if not isinstance(state, (str, os.PathLike)):
        return state
    path = os.fspath(state)
    if os.path.isdir(path) or path.endswith(".safetensors"):
        try:
            return safetensors.read(path)
        except FormatError as error:
            raise StrategyError(error.message, hint=error.hint) from None
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return content.get("model", content)  # type: ignore[no-any-return]
