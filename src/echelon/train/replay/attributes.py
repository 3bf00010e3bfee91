"""Plain attributes of modules, such as counters and texts: a repeated loop calls no module, so they are kept."""

from typing import Any, Dict, Iterator, List, Set, Tuple

import torch
from torch import nn

from .hollow import Hollow

_PLAIN = (bool, int, float, str, type(None))
_OWN = frozenset(nn.Module().__dict__)
_MOST_BYTES = 1 << 20
PREFIX = "attribute/"


def plain(models: List[nn.Module]) -> Dict[str, Any]:
    """Return the numbers and texts of all modules by the names of their attributes.

    >>> layer = nn.Linear(2, 3)
    >>> plain([nn.Sequential(layer)])["attribute/0/0.in_features"]
    2
    """
    return {name: value for name, _, _, value in _all(models) if type(value) in _PLAIN}


def tensors(models: List[nn.Module]) -> Dict[str, torch.Tensor]:
    """Return the tensors of all modules that are neither weights nor buffers."""
    return {
        name: value.detach()
        for name, _, _, value in _all(models)
        if type(value) is torch.Tensor and value.numel() * value.element_size() <= _MOST_BYTES
    }


def ids(models: List[nn.Module]) -> Set[int]:
    """Return the ids of the tensors that are attributes."""
    return {id(value) for _, _, _, value in _all(models) if isinstance(value, torch.Tensor)}


def put(models: List[nn.Module], saved: Dict[str, Any]) -> None:
    """Give the modules the values of a checkpoint."""
    modules = dict(_modules(models))
    for name, value in saved.items():
        owner, _, attribute = name.rpartition(".")
        module = modules.get(owner)
        if module is None:
            continue
        present = module.__dict__.get(attribute)
        if isinstance(present, Hollow):
            present.value = value  # for all who hold it
        module.__dict__[attribute] = value


def _all(models: List[nn.Module]) -> Iterator[Tuple[str, nn.Module, str, Any]]:
    for owner, module in _modules(models):
        for attribute, value in module.__dict__.items():
            if attribute not in _OWN and not attribute.startswith("_"):
                yield "%s.%s" % (owner, attribute), module, attribute, value


def _modules(models: List[nn.Module]) -> Iterator[Tuple[str, nn.Module]]:
    for number, model in enumerate(models):
        for path, module in model.named_modules():
            yield "%s%d/%s" % (PREFIX, number, path), module
