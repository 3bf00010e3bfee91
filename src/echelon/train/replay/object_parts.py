"""What single objects of a script consist of: their kind, what may not change, what can be set, and what they hold."""

import abc
import collections
import functools
import io
import logging
import re
import sys
import types
from contextlib import suppress
from types import FrameType
from typing import Any

import torch
from torch import nn

from .tape import class_of, is_ours_name
from .value_stack import Unclear, live_names, loops_of, place_in_words

_FIXED = (
    types.ModuleType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.GetSetDescriptorType, types.MappingProxyType, types.DynamicClassAttribute, property,
    functools.cached_property, type(vars(collections.namedtuple("_", "a"))["a"]), re.Pattern,
    torch.amp.GradScaler, torch.jit.ScriptFunction,
    *map(type, (torch.ops, torch.ops.aten, torch.ops.aten.add, torch.ops.aten.add.Tensor)),  # PyTorch's own functions
)  # fmt: skip
_TRACKERS = ("torch.utils.tensorboard", "tensorboardX", "wandb", "mlflow")
"""They log nothing while the loop is repeated, so a repeated loop changes nothing in them."""
_OF_LOGGING = frozenset(("parent", "manager", "filters", "lock", "formatter", "stream", "handlers"))
_ABSTRACT = frozenset(vars(abc.ABC))


def fixed_parts(value: Any) -> tuple[str, Any, Any, Any] | None:
    """Take apart what the loop changes in no way that counts: streams, files that are written, code, trackers."""
    for name in ("stdout", "stderr"):
        if value is getattr(sys, name) or value is getattr(sys, f"__{name}__"):
            return "fixed", None, ["sys", name], ()
    if isinstance(value, io.IOBase):
        if not value.closed and value.readable():
            raise Unclear("it is a file that is read, and its position is not saved")
        return "fixed", None, None, ()
    if isinstance(value, (logging.Logger, logging.Handler)):
        own = [(name, one) for name, one in vars(value).items() if name not in _OF_LOGGING and name[0] != "_"]
        return "fixed", None, importable(value), own
    module = type(value).__module__
    if is_ours_name(module) and hasattr(type(value), "__next__"):
        raise Unclear("the position of this iterator cannot be set")  # itertools.cycle: cycles.py
    if isinstance(value, _FIXED) or is_ours_name(module) or module.startswith(_TRACKERS):
        return "fixed", None, importable(value), ()
    return None


def frame_parts(frame: FrameType) -> tuple[str, Any, Any, Any]:
    code = frame.f_code
    loops = [(f"loop-{number}", value) for number, (kind, value) in enumerate(loops_of(frame))]
    names: list[tuple[str, Any]] = []
    if code.co_name != "<module>":
        live = live_names(frame)
        names = [(name, value) for name, value in frame.f_locals.items() if name in live or is_needed(value)]
    fixed = [code.co_name, place_in_words(frame)]
    return "frame", fixed, [name for name, _ in names], [*names, *loops]


def object_parts(value: Any) -> tuple[str, Any, Any, Any]:
    kind = type(value)
    base = layout_of(kind)
    if base is None:
        raise Unclear(f"an object of {kind.__module__}.{kind.__qualname__} cannot be saved and put back")
    entries: list[tuple[Any, Any]] = []
    if base is dict:
        entries = [*(("key", key) for key in value), *dict.items(value)]
    elif base in (list, tuple):
        entries = list(enumerate(base.__iter__(value)))
    own = [(name, one) for name, one in getattr(value, "__dict__", {}).items()]
    own += [(name, getattr(value, name)) for name in slots_of(kind) if hasattr(value, name)]
    name = [kind.__module__, kind.__qualname__]
    head = [name if class_of(*name) is kind else None, len(entries), [name for name, _ in own]]
    return "named tuple" if base is tuple else "object", name, head, [*entries, *own]


def is_needed(value: object) -> bool:
    """Say whether a variable counts although its function never reads it again: models have numbers by their order."""
    return isinstance(value, (nn.Module, torch.optim.Optimizer))


def layout_of(kind: type) -> Any:
    """Return the class of C whose memory the objects of a class of Python have; None for a class with more memory."""
    base: Any = next(one for one in kind.__mro__ if not one.__flags__ & (1 << 9))
    slots = slots_of(kind)
    word = object.__basicsize__ // 2
    is_larger = kind.__basicsize__ > base.__basicsize__ + word * (2 + len(slots))
    has_body = any("__dict__" in vars(one) or "__slots__" in vars(one) for one in kind.__mro__[:-1])
    return base if base in (object, dict, list, tuple) and not is_larger and has_body else None


def slots_of(kind: type) -> list[str]:
    names: list[str] = []
    for one in kind.__mro__:
        slots = vars(one).get("__slots__", ())
        names += [_mangled(one, name) for name in ([slots] if isinstance(slots, str) else slots)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _mangled(kind: type, name: str) -> str:
    """Return the name by which Python keeps a slot: those of a class alone begin with its name."""
    return f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name


def filled_cells(function: types.FunctionType) -> dict[str, Any]:
    """Return what a function carries: the cells that have a value, by the names of their variables."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return {name: cell for name, cell in cells.items() if _is_filled(cell)}


def _is_filled(cell: Any) -> bool:
    with suppress(ValueError):
        return cell.cell_contents is not cell
    return False


def own_attributes(kind: type) -> list[tuple[str, Any]]:
    return [
        (name, value)
        for name, value in vars(kind).items()
        if not name.startswith("__")
        and name not in _ABSTRACT
        and not isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType))
    ]


def importable(value: Any) -> list[str] | None:
    """Return the module and the name by which a value is found again; None if it has none."""
    if isinstance(value, types.ModuleType):
        return [value.__name__, ""]
    name = [str(getattr(value, "__module__", "")), str(getattr(value, "__qualname__", ""))]
    with suppress(Exception):
        return name if class_of(*name) is value else None
    return None
