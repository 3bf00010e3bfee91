"""The trained parameters of an optimizer under readable names, whole whatever they are cut into.

Join the flat parameters of FullyShardedDataParallel (FSDP1) under the script's own names.

fully_shard needs none of this: its parameters are DTensors. Remove this file when PyTorch removes that class.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from ...pytorch import distributed
from .. import modules
from ..function_types import StateDict
from ..wire import messages
from ..wire.gather import each_whole, is_sharded, whole
from . import names


class FlatParameter(NamedTuple):
    """An optimizer's parameter that is a rank's piece of several flattened and joined parameters."""

    names: list[str]  # of the parameters in it, from the module that was wrapped
    shapes: list[tuple[int, ...]]
    group: "dist.ProcessGroup | None"  # None: every rank has all of it

    def whole(self, tensor: torch.Tensor | None, like: torch.Tensor) -> list[torch.Tensor]:
        """Return a parameter, a gradient or a state as the script's own tensors; all ranks must call this.

        A rank without a part passes None; `like` gives the device. If all ranks do so, the result is empty.
        """
        part = like.detach().new_zeros(0) if tensor is None else tensor.detach().flatten()
        content = _joined(part, self.group)
        sizes = [torch.Size(shape).numel() for shape in self.shapes]
        if content.numel() < sum(sizes):
            return []
        pieces = torch.split(content[: sum(sizes)], sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=False)]

    def states(self, state: StateDict, like: torch.Tensor) -> dict[str, list[torch.Tensor]]:
        """Return the whole state of an optimizer; a rank without a part of the parameter has no state of it."""
        own = {key: None if getattr(value, "ndim", 0) else float(value) for key, value in state.items()}
        all_ranks = [own] if self.group is None else messages.gather(own, self.group)
        known = {key: value for of_rank in reversed(all_ranks) for key, value in of_rank.items()}
        return {
            key: self.whole(state.get(key), like) if value is None else [torch.tensor(value)] * len(self.names)
            for key, value in sorted(known.items())
        }


def find(modules: Iterable[nn.Module]) -> dict[int, FlatParameter]:
    result = {}
    for module in modules:
        handle = distributed.flat_handle(module)
        if handle is None:
            continue
        group = handle.process_group if handle.uses_sharded_strategy else None
        names, shapes, parameters = distributed.flat_contents(handle.flat_param)
        if parameters is None:
            result[id(handle.flat_param)] = FlatParameter(names, shapes, group)
            continue
        for parameter, name, shape in zip(parameters, names, shapes, strict=False):
            result[id(parameter)] = FlatParameter([name], [shape], group)
    return result


def _joined(part: torch.Tensor, group: "dist.ProcessGroup | None") -> torch.Tensor:
    """Return the joined parts of all ranks; the parts may differ in length, and be empty."""
    if group is None:
        return part
    size = torch.tensor([part.numel()], device=part.device)
    sizes = [torch.empty_like(size) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, size, group=group)
    lengths = [int(length) for length in sizes]
    padded = part.new_zeros(max(lengths))
    padded[: part.numel()] = part
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([piece[:length] for piece, length in zip(parts, lengths, strict=False)])


Pairs = Iterable[tuple[str, torch.Tensor]]
"""Labels with their tensors, which may be sharded."""


class TrainedParameter(NamedTuple):
    """An optimizer's parameter: a parameter of the script, or several that were flattened into one."""

    parameter: nn.Parameter
    names: list[str]
    flat: FlatParameter | None

    @property
    def is_sharded(self) -> bool:
        if self.flat is not None:
            return self.flat.group is not None
        mesh = getattr(self.parameter, "device_mesh", None)
        return mesh is not None and (int(mesh.size()) > 1 or not is_joined() or dist.get_world_size() == 1)

    @property
    def num_cut(self) -> int:
        """The number of names whose tensors no rank has whole."""
        placements = getattr(self.parameter, "placements", ())
        is_cut = self.is_sharded and not (placements and all(one.is_replicate() for one in placements))
        return len(self.names) if is_cut else 0

    def values(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each name with its parameter, which may be sharded; all ranks must call this and the methods below."""
        return self._named(self.parameter)

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._named(self.parameter.grad)

    def norms(self) -> Iterator[tuple[str, float]]:
        gradient = self.parameter.grad
        if gradient is not None and is_sharded(gradient):
            yield self.names[0], float(whole(_norm(gradient.detach())))  # one number travels
            return
        for name, tensor in wholes(self.gradients()):
            yield name, float(_norm(tensor))

    def states(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
        state = optimizer.state.get(self.parameter, {})
        if self.flat is not None:
            for key, tensors in self.flat.states(state, self.parameter).items():
                for name, tensor in zip(self.names, tensors, strict=False):
                    yield f"{key} of {name}", tensor
            return
        for key, value in state.items():
            is_list = isinstance(value, (list, tuple))
            for place, entry in enumerate(value if is_list else [value]):
                label = "{}{} of {}".format(key, f"[{place}]" if is_list else "", self.names[0])
                if isinstance(entry, torch.Tensor):
                    yield label, entry
                elif isinstance(entry, (int, float)):
                    yield label, torch.tensor(float(entry))

    def _named(self, tensor: torch.Tensor | None) -> Iterator[tuple[str, torch.Tensor]]:
        if self.flat is not None:
            yield from zip(self.names, self.flat.whole(tensor, self.parameter), strict=False)
        elif tensor is not None:
            yield self.names[0], tensor


def trained(parameters: list[nn.Parameter]) -> list[TrainedParameter]:
    flat_parameters = find(modules.living())
    result = []
    for name, parameter in zip(names.names(parameters), parameters, strict=False):
        flat = flat_parameters.get(id(parameter))
        known = [name]
        if flat is not None and name.endswith(distributed.FLAT_NAME):
            known = [name[: -len(distributed.FLAT_NAME)] + inner for inner in flat.names]
        result.append(TrainedParameter(parameter, known, flat))
    return result


def wholes(tensors: Pairs) -> Pairs:
    """Yield each label with its tensor, dense and without shards."""
    labels: list[str] = []

    def unlabelled() -> Iterator[torch.Tensor]:
        for label, tensor in tensors:
            labels.append(label)
            yield tensor

    for place, tensor in enumerate(each_whole(unlabelled())):
        yield labels[place], tensor if tensor.layout == torch.strided else tensor.to_dense()


def _norm(gradient: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(gradient, dtype=None if gradient.is_complex() else torch.float64)
    return norm


def is_joined() -> bool:
    return dist.is_available() and dist.is_initialized()
