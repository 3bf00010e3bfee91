"""The trained parameters of an optimizer under readable names, whole whatever they are cut into."""

from typing import Iterable, Iterator, List, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist
from torch import nn

from ...pytorch import distributed
from .. import modules
from ..gather import each_whole, is_sharded, whole
from . import flat_parameter, names

Pairs = Iterable[Tuple[str, torch.Tensor]]
"""Labels with their tensors, which may be sharded."""


class Trained(NamedTuple):
    """An optimizer's parameter: a parameter of the script, or several that were flattened into one."""

    parameter: nn.Parameter
    names: List[str]
    flat: Optional[flat_parameter.FlatParameter]

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

    def values(self) -> Iterator[Tuple[str, torch.Tensor]]:
        """Yield each name with its parameter, which may be sharded; all ranks must call this and the methods below."""
        return self._named(self.parameter)

    def gradients(self) -> Iterator[Tuple[str, torch.Tensor]]:
        """Yield each name with its gradient, if there is one."""
        return self._named(self.parameter.grad)

    def norms(self) -> Iterator[Tuple[str, float]]:
        """Yield each name with the norm of its gradient."""
        gradient = self.parameter.grad
        if gradient is not None and is_sharded(gradient):
            yield self.names[0], float(whole(_norm(gradient.detach())))  # one number travels
            return
        for name, tensor in wholes(self.gradients()):
            yield name, float(_norm(tensor))

    def states(self, optimizer: torch.optim.Optimizer) -> Iterator[Tuple[str, torch.Tensor]]:
        """Yield the parameter's state in an optimizer, with labels."""
        state = optimizer.state.get(self.parameter, {})
        if self.flat is not None:
            for key, tensors in self.flat.states(state, self.parameter).items():
                for name, tensor in zip(self.names, tensors):  # noqa: B905
                    yield "%s of %s" % (key, name), tensor
            return
        for key, value in state.items():
            is_list = isinstance(value, (list, tuple))
            for place, entry in enumerate(value if is_list else [value]):
                label = "%s%s of %s" % (key, "[%d]" % place if is_list else "", self.names[0])
                if isinstance(entry, torch.Tensor):
                    yield label, entry
                elif isinstance(entry, (int, float)):
                    yield label, torch.tensor(float(entry))

    def _named(self, tensor: Optional[torch.Tensor]) -> Iterator[Tuple[str, torch.Tensor]]:
        if self.flat is not None:
            yield from zip(self.names, self.flat.whole(tensor, self.parameter))  # noqa: B905
        elif tensor is not None:
            yield self.names[0], tensor


def trained(parameters: List[nn.Parameter]) -> List[Trained]:
    """Return an optimizer's parameters under readable names."""
    flat_parameters = flat_parameter.find(modules.living())
    result = []
    for name, parameter in zip(names.names(parameters), parameters):  # noqa: B905
        flat = flat_parameters.get(id(parameter))
        known = [name]
        if flat is not None and name.endswith(distributed.FLAT_NAME):
            known = [name[: -len(distributed.FLAT_NAME)] + inner for inner in flat.names]
        result.append(Trained(parameter, known, flat))
    return result


def wholes(tensors: Pairs) -> Pairs:
    """Yield each label with its tensor, dense and without shards."""
    labels: List[str] = []

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
    """Say whether the ranks can talk to each other."""
    return dist.is_available() and dist.is_initialized()
