"""Compare the script that continues with the one of the checkpoint: its arguments, settings, names and numbers."""

import hashlib
import os
import shlex
import sys
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Sequence, Set, Tuple

import torch
from torch import nn

from ..scaling_error import ScalingError
from ..wire.gather import is_dtensor
from . import cycles
from .carried import counts
from .hollow import Hollow
from .pending import GRADIENT

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


CARRIED = "carried/"
NOT_OF_OBJECTS = (CARRIED, GRADIENT, PREFIX, cycles.PREFIX, "rng/")
"""What belongs to no model and no optimizer."""
_MOST_NAMED = 3
_DECIDED = (
    "the checkpoint decides about weights, the settings of optimizers such as the learning rate, random numbers, and "
    "the position in the data"
)


def say_other_arguments(before: Sequence[str], now: Sequence[str], say: Callable[[str], None]) -> None:
    """Say how the arguments of the script differ from those of the checkpoint, and what that means."""
    if list(before) != list(now):
        words = tuple(shlex.join(arguments) or "none" for arguments in (before, now))
        say("note: the arguments of the script were %s at the checkpoint, and are %s now; %s" % (*words, _DECIDED))


def digests() -> Dict[str, str]:
    """Return a digest of the script, and of each module that was imported from its folder, by its path."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if not main:
        return {}
    folder = os.path.dirname(os.path.abspath(main)) + os.sep
    paths = [os.path.abspath(getattr(module, "__file__", None) or os.devnull) for module in list(sys.modules.values())]
    return {path: _digest(path) for path in paths if path.startswith(folder) and "-packages" not in path}


def say_edits(before: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Say which files of the script are not as they were before the checkpoint, and what that means."""
    edited = [os.path.basename(path) for path, digest in sorted(before.items()) if _digest(path) != digest]
    if edited:
        more = " and %d more" % (len(edited) - _MOST_NAMED) if len(edited) > _MOST_NAMED else ""
        say(
            "note: edited while the run went on: %s%s; the steps before the checkpoint are repeated by what is written "
            "now, which must ask for the same batches and values; %s; all else is as the script has it now"
            % (", ".join(edited[:_MOST_NAMED]), more, _DECIDED)
        )


def _digest(path: str) -> str:
    """Return a digest of a file; empty where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def say_settings(settings: Sequence[str], say: Callable[[str], None]) -> None:
    """Say which settings of optimizers are not those that the script has set."""
    if settings:
        say(
            "note: %s; to change a setting, change it in the loop, behind the checkpoint"
            % "; ".join(settings[:_MOST_NAMED])
        )


def other_settings(kind: str, group: Mapping[str, Any], saved: Mapping[str, Any]) -> List[str]:
    """Return in words the settings of a group that the checkpoint has with another number.

    >>> other_settings("SGD", {"lr": 0.1, "momentum": 0}, {"lr": 0.01, "momentum": 0})
    ['SGD goes on with lr 0.01, as in the checkpoint, and not with 0.1, as the script sets it']
    """
    return [
        "%s goes on with %s %s, as in the checkpoint, and not with %s, as the script sets it"
        % (kind, name, value, group[name])
        for name, value in saved.items()
        if type(value) in (int, float, tuple) and type(group.get(name)) is type(value) and group[name] != value
    ]


def refuse_other_data(taken: int, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse a loader with other batches, or other samples, than the loader of the checkpoint had."""
    for name, text in (("batch", "batches of %s samples"), ("samples", "%s samples in its data set")):
        if name in before and before[name] != now.get(name):
            raise ScalingError(
                "the checkpoint is behind %d batches of a DataLoader with %s, and this DataLoader has %s: the position "
                "in the data has lost its meaning" % (taken, text % before[name], text % now.get(name)),
                "start the script with the arguments and the data of the checkpoint; or start it without --resume",
            )


def check_names(tensors: Iterable[str], saved: Iterable[str]) -> None:
    named, here = {name for name in saved if not name.startswith(NOT_OF_OBJECTS)}, set(tensors)
    for names, text in (
        (named - here, "the checkpoint has %s, and the script has not"),
        (here - named, "the script has %s, and the checkpoint has not"),
    ):
        if names:
            raise ScalingError(text % ", ".join(sorted(names)[:5]), "start the script without --resume")


def refuse_whole_copies(tensors: Mapping[str, torch.Tensor], split: Sequence[str]) -> None:
    """Refuse a copy of a split model that is made in the loop: repeated, the loop copies a model that is not split."""
    if not any(map(is_dtensor, tensors.values())):
        return
    for name in split:
        if not is_dtensor(tensors[name]):
            raise ScalingError(
                "%s was a part on each rank when it was saved, and is whole now: a model that the loop has copied"
                % name,
                "echelon run --scale data --resume …, which has whole weights",
            )


def compare_counts(saved: Dict[str, int]) -> None:
    here = counts()
    for path, value in saved.items():
        if path in here and here[path] != value:
            raise ScalingError(
                "the script goes another way than before the checkpoint: %s is %d now, and was %d"
                % (path.partition(":")[2], here[path], value),
                "let the script decide by values that are the same in each start; or start it without --resume",
            )
