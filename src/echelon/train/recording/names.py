"""Name the tensors and modules of a script by class and attribute, without the names of wrappers."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from ...pytorch import internals
from .. import modules
from ..wire.gather import is_sharded

_WRAPPERS = ("DistributedDataParallel", "DataParallel", "OptimizedModule", "FullyShardedDataParallel")
_WITHIN_NAMES = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


def names(parameters: list[nn.Parameter]) -> list[str]:
    """Return the readable name of each parameter, such as Net.fc1.weight, without the names of wrappers."""
    known: dict[int, tuple[str, nn.Module]] = {}
    for root in roots():
        for name, parameter in root.named_parameters():
            if modules.OF_OPTIMIZERS in name:
                continue
            name = _plain(name)
            if _depth(name) > _depth(known.get(id(parameter), ("", root))[0]):
                known[id(parameter)] = (name, root)
    labels = _Labels()
    return [
        f"{labels.of(known[id(parameter)][1])}.{known[id(parameter)][0]}"
        if id(parameter) in known
        else f"parameter {place} of shape {tuple(parameter.shape)}"
        for place, parameter in enumerate(parameters)
    ]


class Others(NamedTuple):
    """The tensors and modules of the script's models, besides the parameters of an optimizer."""

    tensors: dict[str, torch.Tensor]
    """Buffers, frozen parameters, and whole models that follow another model, such as a teacher."""
    modules: dict[int, str]
    """The names of modules by their id."""


def others(parameters: list[nn.Parameter]) -> Others:
    known = {id(one) for one in parameters}
    labels = _Labels()
    tensors: dict[str, torch.Tensor] = {}
    inside: dict[int, str] = {}
    for root in sorted(roots(), key=lambda one: not any(id(inner) in known for inner in one.parameters())):
        if not any(True for _ in root.parameters()):
            continue
        label = labels.of(root)
        for name, module in root.named_modules():
            inside.setdefault(id(module), label + ("." + _plain(name) if name else ""))
        for kind, name, tensor in _held(root):
            if id(tensor) not in known and _is_whole(tensor) and modules.OF_OPTIMIZERS not in name:
                tensors.setdefault(f"{kind} {label}.{_plain(name)}", tensor)
    return Others(tensors, inside)


def roots() -> Iterator[nn.Module]:
    """Yield the outermost modules, each without its wrappers."""
    every = modules.living()
    inner = {id(child) for module in every for child in internals.children(module).values()}
    for module in every:
        if id(module) not in inner and not isinstance(module, nn.ParameterList):
            yield _unwrapped(module)


def _held(root: nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    for name, tensor in root.named_buffers():
        if not name.endswith("num_batches_tracked"):
            yield "buffer", name, tensor
    for name, tensor in root.named_parameters():
        yield "parameter", name, tensor


def _is_whole(tensor: torch.Tensor) -> bool:
    is_plain = not is_sharded(tensor) and type(tensor).__name__ != "FlatParameter"
    return is_plain and not tensor.is_meta and tensor.layout == torch.strided and tensor.is_floating_point()


def _plain(name: str) -> str:
    for word in _WITHIN_NAMES:
        name = name.replace(word, "")
    return name


def _depth(name: str) -> tuple[int, int, str]:
    return name.count("."), len(name), name


class _Labels:
    """Gives each outermost module the name of its class; a second module of the class Net is Net#2."""

    def __init__(self) -> None:
        self._of: dict[int, str] = {}
        self._counts: dict[str, int] = {}

    def of(self, root: nn.Module) -> str:
        if id(root) not in self._of:
            label = modules.class_in_script(root).__name__
            self._counts[label] = self._counts.get(label, 0) + 1
            self._of[id(root)] = label if self._counts[label] == 1 else f"{label}#{self._counts[label]}"
        return self._of[id(root)]


def _unwrapped(module: nn.Module) -> nn.Module:
    while type(module).__name__ in _WRAPPERS and len(internals.children(module)) == 1:
        module = next(one for one in internals.children(module).values() if one is not None)
    return module
