"""The objects of a training that a script names, as tensors and plain values of a checkpoint.

A weight has its name in the model as it was written, also in DDP, and a state of an optimizer has the name of its
weight. A DTensor is saved in shards; any other tensor must be equal on all ranks that have it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ...checkpoint import exchange
from ..modules import weights_of
from ..rng.generators import Generators
from ..scaling_error import ScalingError
from ..strategies import blocks
from ..strategies.parallel import Parallel
from ..wire import messages
from ..wire.gather import is_dtensor
from .random_numbers import OWN, as_bytes, from_bytes

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_LEAD = "let a checkpoint have models, optimizers, and objects with state_dict() and load_state_dict()"
_SAVED_STATES = "states"
_PART, _PRIME = 1 << 22, 2654435761
_PLAIN = OWN + "object/%s/rank-%d"


class NamedObjects:
    """What the script has named: modules, optimizers, strategies, and other objects with a state."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._modules: dict[str, nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self._others: dict[str, Any] = {}
        self.streams: list[Generators] = []
        """The random numbers that strategies draw for this rank alone."""
        for name, value in named.items():
            self._add(name, value)
        self._names = dict(self._names_of_parameters())
        for name, optimizer in self.optimizers.items():
            self._refuse_foreign(name, optimizer)

    def _add(self, name: str, value: object) -> None:
        if isinstance(value, Parallel):
            self._add_parallel(name, value)
        elif isinstance(value, nn.Module):
            self._modules[name] = value
        elif isinstance(value, torch.optim.Optimizer):
            if hasattr(value, "consolidate_state_dict"):
                raise ScalingError(
                    f"{name} spreads its states over ranks by itself ({type(value).__name__}), and a "
                    "checkpoint cannot cut them anew",
                    "use fully_shard(), which spreads weights, gradients and states",
                )
            self.optimizers[name] = value
        elif callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            self._others[name] = value
        else:
            raise ScalingError(f"{name} is a {type(value).__name__}, which has no state to save", _LEAD)

    def _add_parallel(self, name: str, trained: Parallel) -> None:
        for number, part in enumerate(trained.parts):
            self._modules[name if len(trained.parts) == 1 else f"{name}\n{number}"] = part
        self._add(name + ".optimizer", trained.optimizer)
        self._others[name + ".loss_scale"] = trained.loss_scale
        self.streams.append(trained.generators)

    def _names_of_parameters(self) -> Iterator[tuple[int, str]]:
        for name, module in self._modules.items():
            if any(type(one).__name__ == "FullyShardedDataParallel" for one in module.modules()):
                raise ScalingError(
                    f"{_plain(name)} is in FullyShardedDataParallel, whose weights are no DTensors",
                    "use torch.distributed.fsdp.fully_shard(), which replaces it",
                )
            for path, parameter in module.named_parameters():
                yield id(parameter), f"{_plain(name)}/{blocks.plain_name(path)}"

    def _refuse_foreign(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        for parameter in weights_of(optimizer):
            if id(parameter) not in self._names:
                raise ScalingError(
                    f"{name} trains a weight of shape {tuple(parameter.shape)} that no model of the checkpoint has",
                    f"name its model too: echelon.checkpoints(model=model, {name}={name})",
                )

    # Tensors

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the parameters and the kept buffers; a tensor that several share has its first name."""
        named: dict[str, torch.Tensor] = {}
        seen = set()
        for name, module in self._modules.items():
            for path, tensor in module.state_dict(keep_vars=True).items():
                if not isinstance(tensor, torch.Tensor):
                    raise ScalingError(
                        f"{_plain(name)} has {path}, which is a {type(tensor).__name__} and no tensor",
                        "name the part that has it too, if it has state_dict() and load_state_dict(), or save it",
                    )
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    _add(named, f"{_plain(name)}/{blocks.plain_name(path)}", tensor.detach())
        return named

    def states(self) -> dict[str, torch.Tensor]:
        return {
            f"{name}/{self._names[id(parameter)]}/{key}": value
            for name, optimizer in self.optimizers.items()
            for parameter in weights_of(optimizer)
            for key, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor)
        }

    def make_states(self, saved: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> dict[str, torch.Tensor]:
        """Give optimizers empty states like the saved ones, whose shapes and dtypes these are; return the tensors."""
        made: dict[str, torch.Tensor] = {}
        for name, optimizer in self.optimizers.items():
            for parameter in weights_of(optimizer):
                prefix = f"{name}/{self._names[id(parameter)]}/"
                kept = {key[len(prefix) :]: one for key, one in saved.items() if key.startswith(prefix)}
                for key, (shape, dtype) in kept.items():
                    before = optimizer.state[parameter].get(key)
                    if not isinstance(before, torch.Tensor) or before.shape != torch.Size(shape):
                        optimizer.state[parameter][key] = empty_state(key, shape, dtype, parameter, optimizer)
                    made[prefix + key] = optimizer.state[parameter][key]
        return made

    # Plain values

    def settings(self) -> dict[str, Any]:
        """Return the settings of each group of each optimizer, such as learning rates, and states that are numbers."""
        return {
            name: {
                "groups": [
                    {key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups
                ],
                _SAVED_STATES: {
                    f"{self._names[id(parameter)]}/{key}": _plain_state(name, key, value)
                    for parameter in weights_of(optimizer)
                    for key, value in optimizer.state.get(parameter, {}).items()
                    if not isinstance(value, torch.Tensor)
                },
            }
            for name, optimizer in self.optimizers.items()
        }

    def put_settings(self, saved: Mapping[str, Any]) -> None:
        for name, optimizer in self.optimizers.items():
            groups = saved[name]["groups"]
            if len(groups) != len(optimizer.param_groups):
                raise ScalingError(
                    f"{name} has {len(optimizer.param_groups)} groups of weights, and {len(groups)} in the checkpoint",
                    "make the optimizer as before, or begin in another run directory",
                )
            for group, kept in zip(optimizer.param_groups, groups, strict=False):
                _update(group, kept)
            for parameter in weights_of(optimizer):
                prefix = self._names[id(parameter)] + "/"
                for key, value in saved[name][_SAVED_STATES].items():
                    if key.startswith(prefix):
                        optimizer.state[parameter][key[len(prefix) :]] = value

    def others(self, rank: int) -> dict[str, torch.Tensor]:
        """Return the states of other objects, such as schedulers and scalers, as bytes of this rank."""
        return {_PLAIN % (name, rank): as_bytes(value.state_dict()) for name, value in self._others.items()}

    def put_others(self, kept: Mapping[str, torch.Tensor], rank: int) -> None:
        """Set what `others` returned: that of this rank; where there are more ranks now, that of all, if it is one."""
        for name, value in self._others.items():
            mine = kept.get(_PLAIN % (name, rank))
            if mine is None:
                every = [one for key, one in kept.items() if key.startswith(OWN + f"object/{name}/")]
                if not every or any(not torch.equal(one, every[0]) for one in every):
                    raise ScalingError(
                        f"{name} had another state on each rank, and rank {rank} was not there",
                        f"start as many ranks as before, or save {name} by itself",
                    )
                mine = every[0]
            value.load_state_dict(from_bytes(mine))

    # What must be equal

    def compare_ranks(self) -> set[str]:
        """Refuse weights and states that are no DTensors and differ between ranks: one would be saved for all.

        Buffers may differ: DDP itself takes those of rank 0. Return the names of buffers that an earlier rank saves.
        All ranks must call this.
        """
        buffers = {
            f"{_plain(name)}/{blocks.plain_name(path)}"
            for name, module in self._modules.items()
            for path, _ in module.named_buffers()
        }
        mine = {
            name: 0 if name in buffers else _digest(tensor)
            for name, tensor in {**self.weights(), **self.states()}.items()
            if not is_dtensor(tensor)
        }
        every: list[dict[str, int]] = messages.gather(mine)
        for rank, theirs in enumerate(every):
            for name, digest in theirs.items():
                first = next(number for number, one in enumerate(every) if name in one)
                if every[first][name] != digest:
                    raise ScalingError(
                        f"{name} is not the same on ranks {first} and {rank}, so one tensor cannot stand "
                        "for all of them",
                        "a checkpoint has DTensors, as of fully_shard(), and weights that are equal on all ranks",
                    )
        before = every[: exchange.rank()]
        return {name for name in buffers if name in mine and any(name in one for one in before)}

    def has_gradients_left(self, stepped: set[int]) -> bool:
        """Say whether an optimizer that is not among the stepped ones (by id) still adds up gradients.

        Without optimizers, and where none has gradients, a step is over.
        """
        if self.optimizers and not stepped:
            return True
        return any(
            parameter.grad is not None
            for optimizer in self.optimizers.values()
            if id(optimizer) not in stepped
            for parameter in weights_of(optimizer)
        )


def _add(named: dict[str, torch.Tensor], name: str, tensor: torch.Tensor) -> None:
    if name in named:
        raise ScalingError(f"two weights have the name {name}", "give the modules other names")
    named[name] = tensor


def _plain_state(optimizer: str, key: str, value: object) -> Any:
    """Return a state of an optimizer that is a number; refuse lists of tensors and the like, as LBFGS has."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ScalingError(
        f"{optimizer} keeps {key} as a {type(value).__name__}, and a checkpoint has tensors and numbers of optimizers",
        "save its state_dict() by yourself",
    )


def _update(group: dict[str, Any], kept: dict[str, Any]) -> None:
    """Set the settings of a group; a tensor stays the same tensor, because a captured graph reads it."""
    for key, value in kept.items():
        if isinstance(value, torch.Tensor) and isinstance(group.get(key), torch.Tensor):
            group[key].copy_(value)
        else:
            group[key] = value


def _plain(name: str) -> str:
    return name.partition("\n")[0]


def _digest(tensor: torch.Tensor) -> int:
    """Return a number that differs where a bit does, part by part: a copy as whole numbers takes more memory."""
    flat = tensor.detach().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    bits = flat.view(_BITS[flat.element_size()])
    total = bits.numel()
    for part in torch.split(bits, _PART):
        weights = torch.arange(part.numel(), device=part.device, dtype=torch.int64) * _PRIME + total
        total = int((part.to(torch.int64) * weights).sum())
    return total


def empty_state(
    key: str, shape: tuple[int, ...], dtype: torch.dtype, parameter: torch.Tensor, optimizer: torch.optim.Optimizer
) -> torch.Tensor:
    """Return a tensor as an optimizer makes it: like its weight; the count of steps may be on the host."""
    if key == "step" and not shape:
        is_on_device = any(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)
        return torch.zeros(shape, dtype=dtype, device=parameter.device if is_on_device else "cpu")
    if tuple(parameter.shape) == tuple(shape):
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False).detach()
    return torch.zeros(shape, dtype=dtype, device=parameter.device)
