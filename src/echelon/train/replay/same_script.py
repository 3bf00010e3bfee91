"""Compare the script that continues with the one of the checkpoint: its arguments, settings, names and numbers."""

import hashlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from ..scaling_error import ScalingError
from ..wire.gather import is_dtensor
from . import cycles
from .carried import counts
from .hollow import ShapeOnlyTensor
from .pending import GRADIENT

_PLAIN = (bool, int, float, str, type(None))
_OWN = frozenset(nn.Module().__dict__)
_MOST_BYTES = 1 << 20
PREFIX = "attribute/"


def plain(models: list[nn.Module]) -> dict[str, Any]:
    """Return the numbers and texts of all modules by the names of their attributes.

    >>> layer = nn.Linear(2, 3)
    >>> plain([nn.Sequential(layer)])["attribute/0/0.in_features"]
    2
    """
    return {name: value for name, value in _all(models) if type(value) in _PLAIN}


def tensors(models: list[nn.Module]) -> dict[str, torch.Tensor]:
    return {
        name: value.detach()
        for name, value in _all(models)
        if type(value) is torch.Tensor and value.numel() * value.element_size() <= _MOST_BYTES
    }


def ids(models: list[nn.Module]) -> set[int]:
    return {id(value) for _, value in _all(models) if isinstance(value, torch.Tensor)}


def put(models: list[nn.Module], saved: dict[str, Any]) -> None:
    modules = dict(_modules(models))
    for name, value in saved.items():
        owner, _, attribute = name.rpartition(".")
        module = modules.get(owner)
        if module is None:
            continue
        present = module.__dict__.get(attribute)
        if isinstance(present, ShapeOnlyTensor):
            present.value = value  # for all who hold it
        module.__dict__[attribute] = value


def _all(models: list[nn.Module]) -> Iterator[tuple[str, Any]]:
    for owner, module in _modules(models):
        for attribute, value in module.__dict__.items():
            if attribute not in _OWN and not attribute.startswith("_"):
                yield f"{owner}.{attribute}", value


def _modules(models: list[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    for number, model in enumerate(models):
        for path, module in model.named_modules():
            yield f"{PREFIX}{number}/{path}", module


CARRIED = "carried/"
NOT_OF_OBJECTS = (CARRIED, GRADIENT, PREFIX, cycles.PREFIX, "rng/")
"""What belongs to no model and no optimizer."""
_MOST_NAMED = 3
_GRADIENTS = re.compile(r"\.grad\b(?!\s*\()|set_to_none\s*=\s*False|zero_grad\(\s*False")
_DECIDED = (
    "the checkpoint decides about weights, the settings of optimizers such as the learning rate, random numbers, and "
    "the position in the data"
)


def say_other_arguments(before: Sequence[str], now: Sequence[str], say: Callable[[str], None]) -> None:
    """Say how the arguments of the script differ from those of the checkpoint, and what that means."""
    if list(before) != list(now):
        words = tuple(shlex.join(arguments) or "none" for arguments in (before, now))
        say("note: the arguments of the script were {} at the checkpoint, and are {} now; {}".format(*words, _DECIDED))


def digests() -> dict[str, str]:
    """Return a digest of the script, and of each module that was imported from its folder, by its path."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if not main:
        return {}
    folder = os.path.dirname(os.path.abspath(main)) + os.sep
    paths = [os.path.abspath(getattr(module, "__file__", None) or os.devnull) for module in list(sys.modules.values())]
    return {path: _digest(path) for path in paths if path.startswith(folder) and "-packages" not in path}


def looks_at_gradients(paths: Iterable[str]) -> bool:
    """Say whether a file of the script has `weight.grad`, or lets zeros take the place of gradients."""
    for path in paths:
        with suppress(OSError, UnicodeError), open(path, encoding="utf-8") as file:
            if _GRADIENTS.search(file.read()):
                return True
    return False


def say_edits(before: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Say which files of the script are not as they were before the checkpoint, and what that means."""
    edited = [os.path.basename(path) for path, digest in sorted(before.items()) if _digest(path) != digest]
    if edited:
        more = f" and {len(edited) - _MOST_NAMED} more" if len(edited) > _MOST_NAMED else ""
        say(
            "note: edited while the run went on: {}{}; the steps before the checkpoint are repeated by what is written "
            "now, which must ask for the same batches and values; {}; all else is as the script has it now".format(
                ", ".join(edited[:_MOST_NAMED]), more, _DECIDED
            )
        )


def _digest(path: str) -> str:
    """Return a digest of a file; empty where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def say_settings(settings: Sequence[str], say: Callable[[str], None]) -> None:
    if settings:
        say(
            "note: {}; to change a setting, change it in the loop, behind the checkpoint".format(
                "; ".join(settings[:_MOST_NAMED])
            )
        )


def other_settings(kind: str, group: Mapping[str, Any], saved: Mapping[str, Any]) -> list[str]:
    """Return in words the settings of a group that the checkpoint has with another number.

    >>> other_settings("SGD", {"lr": 0.1, "momentum": 0}, {"lr": 0.01, "momentum": 0})
    ['SGD goes on with lr 0.01, as in the checkpoint, and not with 0.1, as the script sets it']
    """
    return [
        f"{kind} goes on with {name} {value}, as in the checkpoint, and not with {group[name]}, as the script sets it"
        for name, value in saved.items()
        if type(value) in (int, float, tuple) and type(group.get(name)) is type(value) and group[name] != value
    ]


def refuse_other_data(taken: int, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse a loader with other batches, or other samples, than the loader of the checkpoint had."""
    for name, text in (("batch", "batches of %s samples"), ("samples", "%s samples in its data set")):
        if name in before and before[name] != now.get(name):
            raise ScalingError(
                f"the checkpoint is behind {taken} batches of a DataLoader with {text % before[name]}, and this "
                f"DataLoader has {text % now.get(name)}: the position in the data has lost its meaning",
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


def refuse_whole_copies(tensors: Mapping[str, torch.Tensor], split: Iterable[str], trained: Iterable[str]) -> None:
    """Refuse a copy of a split model that is made in the loop: repeated, the loop copies a model that is not split.

    A model with trained weights is no such copy: the present way to scale has left this weight whole.
    """
    if not any(map(is_dtensor, tensors.values())):
        return
    trained_models = {name.partition("/")[0] for name in trained}
    for name in split:
        if not is_dtensor(tensors[name]) and name.partition("/")[0] not in trained_models:
            raise ScalingError(
                f"{name} was a part on each rank when it was saved, and is whole now: a model that the loop has copied",
                "echelon run --scale data --resume …, which has whole weights",
            )


def compare_counts(saved: dict[str, int]) -> None:
    here = counts()
    for path, value in saved.items():
        if path in here and here[path] != value:
            raise ScalingError(
                f"the script goes another way than before the checkpoint: {path.partition(':')[2]} is "
                f"{here[path]} now, and was {value}",
                "let the script decide by values that are the same in each start; or start it without --resume",
            )
