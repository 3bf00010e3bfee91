"""The objects of a training that a script names, as tensors and plain values of a checkpoint.

A weight has its name in the model as it was written, also in DDP, and a state of an optimizer has the name of its
weight. A DTensor is saved in shards; any other tensor must be equal on all ranks that have it.
"""

from typing import Any, Dict, Iterator, List, Mapping, Set, Tuple

import torch
from torch import nn

from ...checkpoint import exchange
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


class Objects:
    """What the script has named: modules, optimizers, strategies, and other objects with a state."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._modules: Dict[str, nn.Module] = {}
        self.optimizers: Dict[str, torch.optim.Optimizer] = {}
        self._others: Dict[str, Any] = {}
        self.streams: List[Generators] = []
        """The random numbers that strategies draw for this rank alone."""
        for name, value in named.items():
            self._add(name, value)
        self._names = dict(self._names_of_parameters())
        for name, optimizer in self.optimizers.items():
            self._refuse_foreign(name, optimizer)

    def _add(self, name: str, value: Any) -> None:
        if isinstance(value, Parallel):
            self._add_parallel(name, value)
        elif isinstance(value, nn.Module):
            self._modules[name] = value
        elif isinstance(value, torch.optim.Optimizer):
            if hasattr(value, "consolidate_state_dict"):
                raise ScalingError(
                    "%s spreads its states over ranks by itself (%s), and a checkpoint cannot cut them anew"
                    % (name, type(value).__name__),
                    "use fully_shard(), which spreads weights, gradients and states",
                )
            self.optimizers[name] = value
        elif callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            self._others[name] = value
        else:
            raise ScalingError("%s is a %s, which has no state to save" % (name, type(value).__name__), _LEAD)

    def _add_parallel(self, name: str, trained: Parallel) -> None:
        for number, part in enumerate(trained.parts):
            self._modules[name if len(trained.parts) == 1 else "%s\n%d" % (name, number)] = part
        self._add(name + ".optimizer", trained.optimizer)
        self._others[name + ".loss_scale"] = trained.loss_scale
        self.streams.append(trained.generators)

    def _names_of_parameters(self) -> Iterator[Tuple[int, str]]:
        for name, module in self._modules.items():
            if any(type(one).__name__ == "FullyShardedDataParallel" for one in module.modules()):
                raise ScalingError(
                    "%s is in FullyShardedDataParallel, whose weights are no DTensors" % _plain(name),
                    "use torch.distributed.fsdp.fully_shard(), which replaces it",
                )
            for path, parameter in module.named_parameters():
                yield id(parameter), "%s/%s" % (_plain(name), blocks.plain_name(path))

    def _refuse_foreign(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        for parameter in _parameters(optimizer):
            if id(parameter) not in self._names:
                raise ScalingError(
                    "%s trains a weight of shape %s that no model of the checkpoint has"
                    % (name, tuple(parameter.shape)),
                    "name its model too: echelon.checkpoints(model=model, %s=%s)" % (name, name),
                )

    # Tensors

    def weights(self) -> Dict[str, torch.Tensor]:
        """Return the parameters and the kept buffers; a tensor that several share has its first name."""
        named: Dict[str, torch.Tensor] = {}
        seen = set()
        for name, module in self._modules.items():
            for path, tensor in module.state_dict(keep_vars=True).items():
                if not isinstance(tensor, torch.Tensor):
                    raise ScalingError(
                        "%s has %s, which is a %s and no tensor" % (_plain(name), path, type(tensor).__name__),
                        "name the part that has it too, if it has state_dict() and load_state_dict(), or save it",
                    )
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    _add(named, "%s/%s" % (_plain(name), blocks.plain_name(path)), tensor.detach())
        return named

    def states(self) -> Dict[str, torch.Tensor]:
        return {
            "%s/%s/%s" % (name, self._names[id(parameter)], key): value
            for name, optimizer in self.optimizers.items()
            for parameter in _parameters(optimizer)
            for key, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor)
        }

    def make_states(self, saved: Mapping[str, Tuple[Tuple[int, ...], torch.dtype]]) -> Dict[str, torch.Tensor]:
        """Give optimizers empty states like the saved ones, whose shapes and dtypes these are; return the tensors."""
        made: Dict[str, torch.Tensor] = {}
        for name, optimizer in self.optimizers.items():
            for parameter in _parameters(optimizer):
                prefix = "%s/%s/" % (name, self._names[id(parameter)])
                kept = {key[len(prefix) :]: one for key, one in saved.items() if key.startswith(prefix)}
                for key, (shape, dtype) in kept.items():
                    before = optimizer.state[parameter].get(key)
                    if not isinstance(before, torch.Tensor) or before.shape != torch.Size(shape):
                        optimizer.state[parameter][key] = empty_state(key, shape, dtype, parameter, optimizer)
                    made[prefix + key] = optimizer.state[parameter][key]
        return made

    # Plain values

    def settings(self) -> Dict[str, Any]:
        """Return the settings of each group of each optimizer, such as learning rates, and states that are numbers."""
        return {
            name: {
                "groups": [
                    {key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups
                ],
                _SAVED_STATES: {
                    "%s/%s" % (self._names[id(parameter)], key): _plain_state(name, key, value)
                    for parameter in _parameters(optimizer)
                    for key, value in optimizer.state.get(parameter, {}).items()
                    if not isinstance(value, torch.Tensor)
                },
            }
            for name, optimizer in self.optimizers.items()
        }

    def put_settings(self, saved: Mapping[str, Any]) -> None:
        """Set what `settings` returned."""
        for name, optimizer in self.optimizers.items():
            groups = saved[name]["groups"]
            if len(groups) != len(optimizer.param_groups):
                raise ScalingError(
                    "%s has %d groups of weights, and %d in the checkpoint"
                    % (name, len(optimizer.param_groups), len(groups)),
                    "make the optimizer as before, or begin in another run directory",
                )
            for group, kept in zip(optimizer.param_groups, groups):  # noqa: B905
                _update(group, kept)
            for parameter in _parameters(optimizer):
                prefix = self._names[id(parameter)] + "/"
                for key, value in saved[name][_SAVED_STATES].items():
                    if key.startswith(prefix):
                        optimizer.state[parameter][key[len(prefix) :]] = value

    def others(self, rank: int) -> Dict[str, torch.Tensor]:
        """Return the states of other objects, such as schedulers and scalers, as bytes of this rank."""
        return {_PLAIN % (name, rank): as_bytes(value.state_dict()) for name, value in self._others.items()}

    def put_others(self, kept: Mapping[str, torch.Tensor], rank: int) -> None:
        """Set what `others` returned: that of this rank; where there are more ranks now, that of all, if it is one."""
        for name, value in self._others.items():
            mine = kept.get(_PLAIN % (name, rank))
            if mine is None:
                every = [one for key, one in kept.items() if key.startswith(OWN + "object/%s/" % name)]
                if not every or any(not torch.equal(one, every[0]) for one in every):
                    raise ScalingError(
                        "%s had another state on each rank, and rank %d was not there" % (name, rank),
                        "start as many ranks as before, or save %s by itself" % name,
                    )
                mine = every[0]
            value.load_state_dict(from_bytes(mine))

    # What must be equal

    def compare_ranks(self) -> Set[str]:
        """Refuse weights and states that are no DTensors and differ between ranks: one would be saved for all.

        Buffers may differ: DDP itself takes those of rank 0. Return the names of buffers that an earlier rank saves.
        All ranks must call this.
        """
        buffers = {
            "%s/%s" % (_plain(name), blocks.plain_name(path))
            for name, module in self._modules.items()
            for path, _ in module.named_buffers()
        }
        mine = {
            name: 0 if name in buffers else _digest(tensor)
            for name, tensor in {**self.weights(), **self.states()}.items()
            if not is_dtensor(tensor)
        }
        every: List[Dict[str, int]] = messages.gather(mine)
        for rank, theirs in enumerate(every):
            for name, digest in theirs.items():
                first = next(number for number, one in enumerate(every) if name in one)
                if every[first][name] != digest:
                    raise ScalingError(
                        "%s is not the same on ranks %d and %d, so one tensor cannot stand for all of them"
                        % (name, first, rank),
                        "a checkpoint has DTensors, as of fully_shard(), and weights that are equal on all ranks",
                    )
        before = every[: exchange.rank()]
        return {name for name in buffers if name in mine and any(name in one for one in before)}

    def has_gradients_left(self, stepped: Set[int]) -> bool:
        """Say whether an optimizer that is not among the stepped ones (by id) still adds up gradients.

        Without optimizers, and where none has gradients, a step is over.
        """
        if self.optimizers and not stepped:
            return True
        return any(
            parameter.grad is not None
            for optimizer in self.optimizers.values()
            if id(optimizer) not in stepped
            for parameter in _parameters(optimizer)
        )


def _add(named: Dict[str, torch.Tensor], name: str, tensor: torch.Tensor) -> None:
    if name in named:
        raise ScalingError("two weights have the name %s" % name, "give the modules other names")
    named[name] = tensor


def _plain_state(optimizer: str, key: str, value: Any) -> Any:
    """Return a state of an optimizer that is a number; refuse lists of tensors and the like, as LBFGS has."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ScalingError(
        "%s keeps %s as a %s, and a checkpoint has tensors and numbers of optimizers"
        % (optimizer, key, type(value).__name__),
        "save its state_dict() by yourself",
    )


def _update(group: Dict[str, Any], kept: Dict[str, Any]) -> None:
    """Set the settings of a group; a tensor stays the same tensor, because a captured graph reads it."""
    for key, value in kept.items():
        if isinstance(value, torch.Tensor) and isinstance(group.get(key), torch.Tensor):
            group[key].copy_(value)
        else:
            group[key] = value


def _plain(name: str) -> str:
    return name.partition("\n")[0]


def _parameters(optimizer: torch.optim.Optimizer) -> List[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


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
    key: str, shape: Tuple[int, ...], dtype: torch.dtype, parameter: torch.Tensor, optimizer: torch.optim.Optimizer
) -> torch.Tensor:
    """Return a tensor as an optimizer makes it: like its weight; the count of steps may be on the host."""
    if key == "step" and not shape:
        is_on_device = any(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)
        return torch.zeros(shape, dtype=dtype, device=parameter.device if is_on_device else "cpu")
    if tuple(parameter.shape) == tuple(shape):
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False).detach()
    return torch.zeros(shape, dtype=dtype, device=parameter.device)
