"""Shard the weights and optimizers of unchanged models over the ranks with PyTorch's fully_shard.

A model's weights become DTensors, and every rank keeps a part. A script saves and reads whole tensors.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import nn

from ..pytorch import distributed, internals
from . import modules, optimizer_kinds, patches
from .function_types import Function, StateDict
from .global_tensors.tensors import map_tensors, tensors_of
from .modules import ReplacedParameters
from .scaling_error import ScalingError
from .wire import device as devices
from .wire import gather
from .wire.gather import each_whole, is_dtensor, is_sharded, whole
from .wire.world import World


class ShardedModels:
    def __init__(self, world: World) -> None:
        self._world = world
        self.roots: list[nn.Module] = []
        self._trained: dict[int, bool] = {}
        self.replaced = ReplacedParameters()

    def refuse_thawed(self) -> None:
        """Refuse weights that were frozen or unfrozen after they were sharded, which fully_shard does not support."""
        for root in self.roots:
            for name, parameter in root.named_parameters():
                if self._trained.get(id(parameter), parameter.requires_grad) != parameter.requires_grad:
                    raise ScalingError(
                        "{}.{} was {} after echelon sharded the model, and fully_shard does not notice".format(
                            type(root).__name__, name, "unfrozen" if parameter.requires_grad else "frozen"
                        ),
                        "echelon run --scale data …, which notices; or freeze before the first step",
                    )

    def refuse_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an optimizer that needs more than its part of each weight, or, in an exact run, may need more."""
        groups = optimizer.param_groups
        if not any(is_sharded(one) for group in groups for one in group["params"]):
            return
        why = optimizer_kinds.why_needs_whole(type(optimizer))
        if why is None and self._world.is_exact:
            is_fused = any(group.get("fused") for group in groups)
            why = optimizer_kinds.why_bits_differ(type(optimizer), is_fused=is_fused)
        if why is not None:
            raise ScalingError(why, "echelon run --scale data …, which keeps all weights on every rank")

    def apply(self, optimizers: Sequence[torch.optim.Optimizer], parameters: Sequence[nn.Parameter]) -> None:
        """Shard every model with trained weights that is not sharded yet, and give its optimizers the parts."""
        from torch.distributed.device_mesh import init_device_mesh

        refuse_old(self._world.device)
        plain = [one for one in parameters if not is_sharded(one)]
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # in-place changes go to our global tensors
        roots = [root for root in roots_of(plain) if root not in self.roots]
        if not roots:
            return
        mesh = init_device_mesh(self._world.device.type, (self._world.processes.size,))
        parts: dict[int, nn.Parameter] = {}
        for root in roots:
            parts.update(_shard(root, mesh))
        self.replaced.note((one, parts[id(one)]) for one in plain if id(one) in parts)
        for optimizer in optimizers:
            give_parts(optimizer, parts)
            self.refuse_optimizer(optimizer)  # also from within a closure, whose step has begun
        self.replaced.forward()
        self.roots += roots
        for root in roots:
            self._trained.update({id(parameter): parameter.requires_grad for parameter in root.parameters()})


def refuse_old(device: torch.device, version: str = torch.__version__) -> None:
    if not devices.is_accelerator(device) and internals.numbers(version) < internals.FULLY_SHARD_ON_CPU:
        raise ScalingError(
            f"--scale fsdp shards weights with fully_shard, which PyTorch {version} cannot do on a CPU",
            "use PyTorch 2.13; or echelon run --scale data …, which keeps all weights on every rank",
        )


def roots_of(parameters: Sequence[nn.Parameter]) -> list[nn.Module]:
    """Return the outermost modules with these weights, in the order of the weights, which is equal on all ranks."""
    order = {id(parameter): place for place, parameter in enumerate(parameters)}
    candidates = {}
    for module in modules.living():
        module = internals.uncompiled(module)  # torch.compile's wrapper has no weights of its own
        places = [order[id(parameter)] for parameter in module.parameters() if id(parameter) in order]
        if places and type(module).__name__ != "_Trained":
            candidates[id(module)] = (min(places), module)
    inner = {id(child) for _, module in candidates.values() for child in module.modules() if child is not module}
    ranked = sorted((entry for key, entry in candidates.items() if key not in inner), key=lambda entry: entry[0])
    return [module for _, module in ranked]


def _shard(root: nn.Module, mesh: Any) -> dict[int, nn.Parameter]:
    """Shard one model, its repeated blocks first; return the new weights by the ids of the old weights."""
    from torch.distributed.fsdp import fully_shard

    old = dict(root.named_parameters(remove_duplicate=False))
    for block in _blocks(root):
        fully_shard(block, mesh=mesh)
    if isinstance(root, (nn.ModuleList, nn.ModuleDict)):
        raise ScalingError(
            f"--scale fsdp needs models that the script calls, but a {type(root).__name__} holds weights "
            "that the script trains",
            "put these weights into an nn.Module with a forward(), or use --scale data",
        )
    fully_shard(root, mesh=mesh, reshard_after_forward=True)  # else model.zero_grad() after a forward() clears nothing
    gather.install(root, torch.device(mesh.device_type))
    kind = modules.class_in_script(root)
    for name in dir(kind):
        if not name.startswith("_") and not hasattr(nn.Module, name) and callable(getattr(kind, name)):
            _let_be_called(root, name)
    new = dict(root.named_parameters(remove_duplicate=False))
    return {id(parameter): new[name] for name, parameter in old.items()}


def _let_be_called(root: Any, name: str) -> None:
    """Let a method such as model.encode(x) gather the weights as forward() does, unless forward() has gathered them."""
    from torch.distributed.fsdp import register_fsdp_forward_method

    plain = getattr(root, name)
    register_fsdp_forward_method(root, name)
    spread, is_inside = getattr(root, name), distributed.is_in_forward(root)

    @wraps(plain)
    def call(*args: object, **kwargs: object) -> Any:
        return (plain if is_inside() else spread)(*args, **kwargs)

    setattr(root, name, call)


def _blocks(root: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks: modules in a ModuleList, the innermost first, that share no weights with others."""
    lists = [module for module in root.modules() if isinstance(module, nn.ModuleList)]
    blocks = [block for each in lists for block in each if next(block.parameters(), None) is not None]
    tied = _tied(root)
    return [
        block
        for block in reversed(blocks)
        if not any(id(parameter) in tied for parameter in block.parameters()) and block is not root
    ]


def _tied(root: nn.Module) -> "set[int]":
    seen: dict[int, int] = {}
    for module in root.modules():
        for parameter in module.parameters(recurse=False):
            seen[id(parameter)] = seen.get(id(parameter), 0) + 1
    return {key for key, count in seen.items() if count > 1}


def give_parts(optimizer: torch.optim.Optimizer, parts: dict[int, nn.Parameter]) -> None:
    for group in optimizer.param_groups:
        group["params"] = [parts.get(id(parameter), parameter) for parameter in group["params"]]
    kept = list(optimizer.state.items())
    optimizer.state.clear()  # and filled in its old order
    for parameter, state in kept:
        part = parts.get(id(parameter))
        optimizer.state[parameter if part is None else part] = state if part is None else _part_of_state(state, part)


def _part_of_state(state: object, parameter: Any) -> object:
    """Return an optimizer's state of one weight, with tensors of the weight's shape sharded like the weight."""
    if not is_dtensor(parameter):
        return state  # the whole weight is on another rank
    from torch.distributed.tensor import distribute_tensor

    def change(tensor: torch.Tensor) -> object:
        if is_sharded(tensor) or tensor.shape != parameter.shape or not tensor.dim():
            return tensor
        return distribute_tensor(tensor, parameter.device_mesh, parameter.placements)

    return map_tensors(state, change)


_WHY_SAVED = "A state that is saved has whole tensors."
_WHY_LOADED = "A state that is loaded is cut into the parts of this rank."


def install() -> None:
    """Let the script save and read whole tensors, and shard the tensors that it loads."""
    _hook_modules()
    _hook_optimizers()
    _hook_reads()


def _hook_modules() -> None:
    original, load_original = nn.Module.state_dict, nn.Module.load_state_dict

    outer: list[nn.Module] = []

    def get(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        outer.append(self)
        try:
            parts = original(self, *args, **kwargs)
        finally:
            outer.pop()
        if outer and kwargs.get("destination") is not None:
            return parts  # the outer module gathers it, together with its other tensors
        result = _with_wholes(parts)
        internals.keep_versions(result, parts)
        return result

    def load(self: nn.Module, state_dict: StateDict, *args: Any, **kwargs: Any) -> Any:
        own = dict(self.named_parameters(remove_duplicate=False))
        state_dict = {
            name: _part_of_state(value, own[name]) if name in own and is_sharded(own[name]) else value
            for name, value in state_dict.items()
        }
        return load_original(self, state_dict, *args, **kwargs)

    patches.replace(nn.Module, "state_dict", get, why=_WHY_SAVED)
    patches.replace(nn.Module, "load_state_dict", load, why=_WHY_LOADED)


def _with_wholes(state: object) -> object:
    """Return a state with whole tensors; one message gathers many of them."""
    spread = [one for one in tensors_of(state) if is_sharded(one)]
    # state_dict(keep_vars=True) asks for tensors that have gradients, and these travel one by one
    wholes = iter(map(whole, spread) if any(one.requires_grad for one in spread) else each_whole(spread))
    return map_tensors(state, lambda one: next(wholes) if is_sharded(one) else one)


def _hook_optimizers() -> None:
    original: Function = torch.optim.Optimizer.state_dict
    patches.replace(torch.optim.Optimizer, "state_dict", lambda self: _with_wholes(original(self)), why=_WHY_SAVED)
    load = torch.optim.Optimizer.load_state_dict

    def load_state_dict(self: torch.optim.Optimizer, state_dict: dict[str, object]) -> None:
        load(self, state_dict)
        for parameter in [one for one in self.state if is_sharded(one)]:
            self.state[parameter] = _part_of_state(self.state[parameter], parameter)

    patches.replace(torch.optim.Optimizer, "load_state_dict", load_state_dict, why=_WHY_LOADED)


def _hook_reads() -> None:
    """Let a read of a sharded tensor's numbers return those of the whole; PyTorch reads only the rank's part."""
    from torch.distributed.tensor import DTensor

    def read_whole(name: str) -> Callable[..., object]:
        def read(self: Any, *args: object, **kwargs: object) -> Any:
            return getattr(self.detach().full_tensor(), name)(*args, **kwargs)

        return read

    for name in ("item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__format__", "__array__", "__iter__"):
        patches.replace(DTensor, name, read_whole(name), why="A number that is read is that of the whole tensor.")
