"""Choose the parallelism of a run: a class of echelon, or a class in a file of the user."""

import importlib.util
import os
import sys
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from ...errors import UsageError
from ...orders.scale import KINDS, ScaleOptions
from .. import patches
from ..base_parallelism import Parallelism, Setup
from .shared_batches import SharedBatches

_REPLICATED = KINDS["data"].place
PUBLIC: dict[str, str] = {
    "SharedBatches": "shared_batches:SharedBatches",
    "Replicated": _REPLICATED,
    "FullySharded": KINDS["fsdp"].place,
}
"""The classes that a user may derive from, by their names in the package."""
LOCAL_SGD = "local_sgd:LocalSGD"
"""Module and class with --sync-every."""


def choose(setup: Setup) -> Parallelism:
    """Make the parallelism that the options ask for; one rank alone replicates nothing."""
    options = setup.options
    if setup.world.is_alone:
        return _own(_REPLICATED)(setup)
    kind = of_user(options.how) if options.is_of_user else of_echelon(options)
    needs_replicas = options.compress or options.bucket_megabytes or options.watches_bits
    if needs_replicas and not issubclass(kind, _own(_REPLICATED)):
        raise UsageError(
            "--compress, --bucket-mb and --watch-bits are for weights that every rank has, and gradients that DDP "
            f"exchanges, but {kind.__name__} is no Replicated",
            hint=f"class {kind.__name__}(echelon.Replicated), or remove the option",
        )
    return kind(setup)


def of_echelon(options: ScaleOptions) -> type[Parallelism]:
    if options.is_of_user:
        return _own(_REPLICATED)  # which most classes of users derive from
    if options.steps_alone:
        return _own(LOCAL_SGD)
    kind = KINDS[options.how]
    return _own(kind.exact_place if options.num_shards else kind.place)


def _own(place: str) -> type[Parallelism]:
    module, _, name = place.partition(":")
    kind: type[Parallelism] = getattr(importlib.import_module("." + module, __package__), name)
    return kind


def of_user(place: str) -> type[Parallelism]:
    """Import FILE.py:CLASS; raise UsageError where that is no parallelism."""
    path, _, name = place.rpartition(":")
    kind = getattr(_module_of(path), name, None)
    why_not = reason_against(kind)
    if why_not:
        raise UsageError(
            f"--scale {place}: {name} {why_not}",
            hint=f"write in {path}: from echelon import Replicated; class {name}(Replicated): …",
        )
    checked: Any = kind
    return checked  # type: ignore[no-any-return]


def reason_against(kind: object) -> str:
    """Return why something is no parallelism that can be made; empty if it is one."""
    if kind is None:
        return "is not there"
    if not isinstance(kind, type) or not issubclass(kind, Parallelism):
        return f"is {kind!r}, and no parallelism"
    if issubclass(kind, SharedBatches) and kind.mean_gradients is SharedBatches.mean_gradients:
        return "has no mean_gradients(loss, run_backward)"
    return "" if hasattr(kind, "kind_of_calls") else "does not say how models are called, as SharedBatches does"


def _module_of(path: str) -> ModuleType:
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # noqa: S101  (it ends with .py)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    folder = os.path.dirname(os.path.abspath(path))
    sys.path.insert(0, folder)  # for what stands beside the file; Python has not put the script's folder there yet
    try:
        with _as_echelon():
            spec.loader.exec_module(module)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise UsageError(f"--scale {path}:…: the file fails with {told}", hint=f"python {path}") from error
    finally:
        sys.path.remove(folder)
    return module


def _as_echelon() -> AbstractContextManager[None]:
    """Let `from echelon import Replicated` give the class of this process, where a rank has it under another name."""
    facade = ModuleType("echelon")
    vars(facade).update({name: _own(place) for name, place in PUBLIC.items()})
    why = "The user's own parallelism is derived from the classes of this process."
    return patches.replaced(sys.modules, "echelon", facade, why=why, name="sys.modules[echelon]")
