"""A picture of all that a script's variables reach, as plain data: what a loop carries from step to step.

Each object has the path by which it is reached first. Two pictures of one script, taken at the same place of two
processes, have the same paths for the objects that were made before the loop.
"""

import array
import collections
import copy
import functools
import gc
import inspect
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, FunctionType, GeneratorType
from typing import Any, NamedTuple

import torch
from torch import nn

from ...pytorch import internals
from ..modules import attributes_of_script, class_in_script, hooks_of_script
from ..rng.states import is_generator, state_of
from ..wire import plain_data
from .iterator_positions import is_iterator, position_of, reaches
from .object_parts import filled_cells, fixed_parts, frame_parts, importable, object_parts, own_attributes
from .passes import Pass
from .tape import PLAIN
from .value_stack import Unclear

_ATOMS = frozenset(PLAIN)
_DICTS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
MOST_OBJECTS = 200_000
_MANY = 10_000
"""A list or an array of so many entries that has not changed is not written."""
_FILLED = frozenset(("list", "dict", "set", "deque", "frame", "function that yields"))
"""What gets its whole content, so that it need not be the very object that was there before."""
_OPTIMIZER = frozenset(("defaults", "state", "param_groups"))
CLASS = "class of "
"""The label of an object's class among its parts."""
NEW = ""
"""The path of an object that was made in the loop."""


class ObjectNode(NamedTuple):
    """One object: its kind, what may not change, what can be set, and what it holds."""

    kind: str
    fixed: Any
    head: Any
    parts: list[Any]


class FirstPicture(NamedTuple):
    """What a later picture is compared with: the picture at the first time that a script was at a place."""

    paths: dict[int, str]
    """The path of each object, by its id."""
    nodes: dict[str, ObjectNode]
    alive: dict[str, Any]
    """Weak references to the objects whose identity is all that is known of them."""
    variables: dict[str, Any]
    """What the variables of modules held: a value in a list, or the path of an object."""

    def path_of(self, value: object, node: ObjectNode) -> str:
        """Return the path that an object had; NEW if it was not there: ids are used again."""
        path = self.paths.get(id(value), NEW)
        if not path or self.nodes[path].kind != node.kind:
            return NEW
        if node.kind in ("object", "iterator", "function", "dict") and self.nodes[path].fixed != node.fixed:
            return NEW
        return path if path not in self.alive or self.alive[path]() is value else NEW


class Picture:
    """The objects that are reached from named roots."""

    def __init__(
        self, weights: Mapping[int, str], is_of_script: Callable[[str], bool], begun: FirstPicture | None
    ) -> None:
        self.nodes: list[ObjectNode] = []
        self.objects: list[Any] = []
        self.paths: list[str] = []
        self.refusals: list[tuple[str, str]] = []
        """The paths of what cannot be put back in another process, each with the reason."""
        self.globals: list[Any] = []
        """Each module with its variables."""
        self.asking: Pass | None = None
        self.writes_all = False
        """Whether lists and arrays with many entries are written also where they have not changed."""
        self._index: dict[int, int] = {}
        self._used: set[str] = set()
        self._weights, self._is_of_script, self._begun = weights, is_of_script, begun

    def number_of(self, value: object) -> int | None:
        """Return the number of an object's node; None if no root reaches it."""
        return self._index.get(id(value))

    def add_globals(self, module: types.ModuleType, path: str, live: Container[str] | None) -> None:
        """Add the variables of a module that are read again; None: all of them may be."""
        names = [
            [name, self.add(value, f"{path}.{name}")]
            for name, value in list(vars(module).items())
            if not name.startswith("__") and (live is None or name in live)
        ]
        self.globals.append([module.__name__, names])

    def add(self, value: Any, path: str) -> Any:
        """Return a reference to a value: the number of its node, or the value itself in a list."""
        if type(value) in _ATOMS:
            return [value]
        number = self._index.get(id(value))
        if number is not None:
            return number
        while path in self._used:
            path += "'"
        self._used.add(path)
        number = self._index[id(value)] = len(self.nodes)
        self.nodes.append(ObjectNode("", None, None, []))
        self.objects.append(value)
        self.paths.append(path)
        if number > MOST_OBJECTS:
            if number == MOST_OBJECTS + 1:
                self.refusals.append((path, f"the script's variables reach more than {MOST_OBJECTS:,} objects"))
            return number
        try:
            kind, fixed, head, parts = self._take_apart(value)
        except Unclear as reason:
            self.refusals.append((path, str(reason)))
            kind, fixed, head, parts = "fixed", None, None, ()
        self.nodes[number] = ObjectNode(kind, fixed, head, [])
        for label, part in parts:
            word = label if isinstance(label, (str, int)) else "entry"
            self.nodes[number].parts.append([word, self.add(part, f"{path}.{word}")])
        return number

    def refuse_shared_memory(self, places: list[str], weights: Iterable[torch.Tensor]) -> None:
        """Refuse a tensor or an array that was made in the loop as a part of another one: both change together."""
        values = [*zip(weights, itertools.repeat("")), *zip(self.objects, self.paths, strict=True)]
        new = {id(value) for value, place in zip(self.objects, places, strict=True) if place == NEW}
        owner: dict[int, Any] = {}
        for value, path in values:
            start = _start_of_memory(value)
            if start is not None:
                first = owner.setdefault(start, value)
                if first is not value and not new.isdisjoint((id(first), id(value))):
                    self.refusals.append((path, "it is a part of another one's memory"))

    def begun(self) -> FirstPicture:
        paths = {id(value): path for value, path in zip(self.objects, self.paths, strict=True)}
        alive = {
            path: _reference(value)
            for value, path, node in zip(self.objects, self.paths, self.nodes, strict=True)
            if node.kind not in _FILLED
        }
        nodes = {
            path: node._replace(parts=[[label, self._path_of(part)] for label, part in node.parts])
            for path, node in zip(self.paths, self.nodes, strict=True)
        }
        variables = {f"{name}.{key}": self._path_of(part) for name, entries in self.globals for key, part in entries}
        return FirstPicture(paths, nodes, alive, variables)

    def _path_of(self, reference: Any) -> Any:
        return reference if isinstance(reference, list) else self.paths[reference]

    def _take_apart(self, value: Any) -> tuple[str, Any, Any, Iterable[tuple[Any, Any]]]:
        kind = class_in_script(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if kind is list or kind is tuple or kind is collections.deque:
            return self._sequence(value)
        if kind in _DICTS:
            factory = [("factory", value.default_factory)] if kind is collections.defaultdict else []
            keys = [("key", key) for key in value]
            own = [("attributes", vars(value))] if getattr(value, "__dict__", None) else []
            return "dict", kind.__name__, len(value), [*factory, *keys, *value.items(), *own]
        if kind in (set, frozenset):
            if any(type(entry) not in _ATOMS for entry in value):
                raise Unclear("a set of objects has no order")
            again = kind([*value])
            if [*again] != [*value] or sys.getsizeof(again) != sys.getsizeof(value):
                raise Unclear("the order of this set comes from what was in it before")
            return kind.__name__, None, None, [("", entry) for entry in value]
        for recognise in (self._known, self._callable, self._iterator, self._value):
            taken = recognise(value)
            if taken is not None:
                break
        else:
            taken = object_parts(value)
        if taken[0] in ("object", "module", "optimizer") and self._is_of_script(kind.__module__):
            return *taken[:3], [*taken[3], (CLASS, kind)]
        return taken

    def _tensor(self, tensor: torch.Tensor) -> tuple[str, Any, Any, Any]:
        name = self._weights.get(id(tensor))
        if name is not None:
            return "weight", name, bool(tensor.requires_grad), ()
        if tensor.is_leaf and tensor.requires_grad and not self._was_there(tensor):
            raise Unclear("it is a tensor that was made in the loop and requires a gradient")
        version = None if type(tensor) is not torch.Tensor else internals.version(tensor)
        return "tensor", form_of(tensor), version, ()

    def _was_there(self, value: object) -> bool:
        if self._begun is None:
            return True
        path = self._begun.paths.get(id(value))
        return path is not None and (path not in self._begun.alive or self._begun.alive[path]() is value)

    def _is_same(self, value: object, mark: int | None) -> bool:
        """Say whether a value with many entries need not be written: it is as it was, or nothing is written."""
        if self.writes_all:
            return False
        if self._begun is None or mark is None:
            return mark is not None
        before = self._begun.nodes.get(self._begun.paths.get(id(value), ""))
        return before is not None and isinstance(before.head, list) and before.head[0] == mark

    def _sequence(self, value: Any) -> tuple[str, Any, Any, Any]:
        kind = type(value).__name__
        fixed = value.maxlen if kind == "deque" else None
        kinds = set(map(type, value))
        if kinds == {float}:
            return kind, fixed, ["floats", array.array("d", value).tobytes()], ()
        if kinds <= _ATOMS and len(value) > 8:
            mark = hash(repr(value)) if len(value) > _MANY else None
            return kind, fixed, [mark, None if self._is_same(value, mark) else list(value)], ()
        return kind, fixed, None, enumerate(value)

    def _known(self, value: Any) -> tuple[str, Any, Any, Any] | None:
        """Take apart what PyTorch and echelon have made."""
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, torch.optim.Optimizer):
            return self._optimizer(value)
        if isinstance(value, torch.utils.data.DataLoader):
            names = ("dataset", "sampler", "batch_sampler")
            fixed = [value.num_workers, value.batch_size, value.drop_last]
            return "loader", fixed, None, [(name, getattr(value, name, None)) for name in names]
        if isinstance(value, Pass):
            return "pass", None, value.place(), [("loader", value.loader)]
        if is_generator(value):
            return "generator of random numbers", type(value).__name__, state_of(value), ()
        return fixed_parts(value)

    def _module(self, module: nn.Module) -> tuple[str, Any, Any, Any]:
        weights = list(module.named_parameters(recurse=False))
        kind = class_in_script(module)
        is_own = self._is_of_script(kind.__module__)
        hooks = list(map(list, hooks_of_script(module).values()))  # PyTorch gives each hook a number of its own
        forward = inspect.getattr_static(kind, "forward", None)  # that of a scripted module raises an error
        fixed = [kind.__qualname__, hooks, id(forward), [name for name, _ in weights]]
        flags = [bool(one.requires_grad) for _, one in weights]
        own = attributes_of_script(module).items()
        others = [(name, one) for name, one in own if is_own or name[0] != "_"]
        buffers = [[name, None if one is None else form_of(one)] for name, one in module._buffers.items()]
        return "module", fixed, [module.training, flags, buffers], [*module._modules.items(), *others]

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> tuple[str, Any, Any, Any]:
        groups = [
            [
                {key: copy.copy(one) for key, one in group.items() if key != "params" and _is_plain(one)},
                [self._weights.get(id(weight), "") for weight in group["params"]],
            ]
            for group in optimizer.param_groups
        ]
        if any(not name for _, names in groups for name in names) and self._begun is not None:
            before = self._begun.nodes.get(self._begun.paths.get(id(optimizer), ""))
            if before is None or [len(names) for _, names in before.head] != [len(names) for _, names in groups]:
                raise Unclear("it trains a tensor that no model has")
        own = [(name, one) for name, one in vars(optimizer).items() if name not in _OPTIMIZER and name[0] != "_"]
        return "optimizer", type(optimizer).__qualname__, groups, own

    def _callable(self, value: Any) -> tuple[str, Any, Any, Any] | None:
        if isinstance(value, type):
            if not self._is_of_script(value.__module__):
                return "class", None, importable(value), ()
            bases = [(f"{CLASS}{number}", base) for number, base in enumerate(value.__bases__)]
            return "class", None, importable(value), [*own_attributes(value), *bases]
        if isinstance(value, FunctionType):
            code = value.__code__
            fixed = [value.__qualname__, list(code.co_freevars)]
            if not self._is_of_script(value.__module__ or ""):
                return "function", fixed, importable(value), ()
            cells = [(f"closure-{name}", cell.cell_contents) for name, cell in filled_cells(value).items()]
            defaults = [("defaults", value.__defaults__), ("keywords", value.__kwdefaults__)]
            return "function", fixed, importable(value), [*cells, *defaults, *vars(value).items()]
        if isinstance(value, types.MethodType):
            return "method", None, value.__name__, [("self", value.__self__)]
        if isinstance(value, (staticmethod, classmethod)):
            return "fixed", None, None, [("function", value.__func__)]
        if type(value) is functools.partial:
            held = {"function": value.func, "arguments": value.args, "keywords": value.keywords, "own": vars(value)}
            return "partial", None, None, held.items()
        return None

    def _iterator(self, value: Any) -> tuple[str, Any, Any, Any] | None:
        if isinstance(value, GeneratorType):
            if value.gi_frame is None:
                return "fixed", "ended", None, ()
            return "function that yields", value.gi_code.co_name, None, [("frame", value.gi_frame)]
        if isinstance(value, FrameType):
            return frame_parts(value)
        if not is_iterator(value):
            return None
        kind, at, inner = position_of(value)
        if kind == "zip" and self.asking is not None and any(reaches(one, self.asking) for one in inner[1:]):
            raise Unclear("a zip() has taken the first of its parts already")
        return "iterator", kind, at, enumerate(inner)

    def _value(self, value: Any) -> tuple[str, Any, Any, Any] | None:
        """Take apart plain data of other kinds: numpy's arrays, dates, paths."""
        taken = plain_data.take_apart(value)
        if taken is None:
            return None
        content = taken[3] if taken[0] == "numpy" and not taken[4] else None
        if not isinstance(content, bytes):
            return "value", None, value, ()
        if value.base is not None and not self._was_there(value):
            raise Unclear("it is a part of another array, made in the loop")
        mark = hash(content) if len(content) > _MANY else None
        return "array", [taken[1], taken[2]], [mark, None if self._is_same(value, mark) else value.copy()], ()


@contextmanager
def without_collector() -> Iterator[None]:
    """Let Python's collector wait: it would look through the many small objects of a picture again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def form_of(tensor: torch.Tensor) -> list[Any]:
    return [tuple(tensor.shape), str(tensor.dtype), tensor.device.type]


def _start_of_memory(value: Any) -> int | None:
    """Return where the memory of a tensor or of an array of numpy begins; None for others, and without memory."""
    if type(value) in (torch.Tensor, nn.Parameter) and value.layout == torch.strided and not value.is_meta:
        return int(value.untyped_storage().data_ptr()) if value.numel() else None
    if type(value).__module__ != "numpy" or not hasattr(value, "__array_interface__") or not value.size:
        return None
    while type(value.base) is type(value):
        value = value.base
    return int(value.__array_interface__["data"][0])


def _reference(value: Any) -> Callable[[], Any]:
    """Return a function that gives an object: as long as it lives, or for ever where there is no weak reference."""
    if isinstance(value, types.MethodType):
        return lambda: None  # Python makes another one each time it is asked for
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def _is_plain(value: object) -> bool:
    return type(value) in _ATOMS or (type(value) in (tuple, list) and all(map(_is_plain, value)))  # type: ignore[call-overload]
