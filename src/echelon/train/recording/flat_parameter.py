"""Join the flat parameters of FullyShardedDataParallel (FSDP1) under the script's own names.

fully_shard needs none of this: its parameters are DTensors. Remove this file when PyTorch removes that class.
"""

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist
from torch import nn

from ...pytorch import distributed
from .. import messages


class FlatParameter(NamedTuple):
    """An optimizer's parameter that is a rank's piece of several flattened and joined parameters."""

    names: List[str]  # of the parameters in it, from the module that was wrapped
    shapes: List[Tuple[int, ...]]
    group: Any  # None: every rank has all of it

    def whole(self, tensor: Optional[torch.Tensor], like: torch.Tensor) -> List[torch.Tensor]:
        """Return a parameter, a gradient or a state as the script's own tensors; all ranks must call this.

        A rank without a part passes None; `like` gives the device. If all ranks do so, the result is empty.
        """
        part = like.detach().new_zeros(0) if tensor is None else tensor.detach().flatten()
        content = _joined(part, self.group)
        sizes = [torch.Size(shape).numel() for shape in self.shapes]
        if content.numel() < sum(sizes):
            return []
        pieces = torch.split(content[: sum(sizes)], sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes)]  # noqa: B905

    def states(self, state: Dict[str, Any], like: torch.Tensor) -> Dict[str, List[torch.Tensor]]:
        """Return the whole state of an optimizer; a rank without a part of the parameter has no state of it."""
        own = {key: None if getattr(value, "ndim", 0) else float(value) for key, value in state.items()}
        all_ranks: List[Any] = [own]
        if self.group is not None:
            all_ranks = messages.gather(own, self.group)
        known = {key: value for of_rank in reversed(all_ranks) for key, value in of_rank.items()}
        return {
            key: self.whole(state.get(key), like) if value is None else [torch.tensor(value)] * len(self.names)
            for key, value in sorted(known.items())
        }


def find(modules: Iterable[nn.Module]) -> Dict[int, FlatParameter]:
    """Return the flat parameters of modules, by the ids of the optimizer's parameters."""
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
        for parameter, name, shape in zip(parameters, names, shapes):  # noqa: B905
            result[id(parameter)] = FlatParameter([name], [shape], group)
    return result


def _joined(part: torch.Tensor, group: Any) -> torch.Tensor:
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
    return torch.cat([piece[:length] for piece, length in zip(parts, lengths)])  # noqa: B905
