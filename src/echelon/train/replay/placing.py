"""Put a picture of a script's variables into those of a process that has come to the same place for the first time."""

import array
import collections
import functools
import sys
from collections.abc import Mapping
from types import FrameType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import nn

from ..rng.states import put_state
from ..scaling_error import ScalingError
from ..wire import plain_data
from . import hollow
from .iterator_positions import KEPT, IteratorPosition, advance, put_position
from .object_parts import layout_of, slots_of
from .passes import Passes
from .picture import CLASS, NEW, FirstPicture, ObjectNode, Picture
from .tape import class_of
from .value_stack import Unclear, put_variables

_IMMUTABLE = ("tuple", "named tuple", "frozenset", "tensor", "weight", "value", "method", "partial", "class", "fixed")
_NAMED = ("frame", "object", "module", "optimizer", "class", "function")
_CREATED = (
    "tuple", "named tuple", "frozenset", "tensor", "weight", "value", "method", "partial", "list", "dict", "set",
    "deque", "array", "pass",
)  # fmt: skip


class Changes(NamedTuple):
    """What is saved of a picture."""

    nodes: list[Any]
    """Each node with what has changed in it; the last entry says whether anything has."""
    places: list[str]
    """For each object the path of the object that takes its place in another process; NEW: it is made."""


def changes_of(picture: Picture, begun: FirstPicture) -> Changes:
    """Return what has changed since the beginning.

    Adds to the refusals of the picture what can neither be made nor has an object that takes its place.
    """
    known = [begun.path_of(value, node) for value, node in zip(picture.objects, picture.nodes, strict=True)]
    taken = set(known)
    nodes, places = [], []
    for path, node, own in zip(known, picture.nodes, picture.paths, strict=True):
        before = begun.nodes.get(path or own)
        can_stand_in = node.kind not in _IMMUTABLE and own not in taken and before is not None
        is_by_name = node.kind == "weight" or (node.kind == "fixed" and node.head is not None)
        changed = [*node, True]
        if before is not None and (path or (can_stand_in and _why_not(before, node) == "")):
            why_not = _why_not(before, node)
            if why_not:
                picture.refusals.append((own, why_not))
            else:
                changed = _changed(before, node, known)
                path = path or own
        elif not _can_be_made(node):
            picture.refusals.append((own, f"this {_words(node)} was made in the loop"))
        places.append(NEW if is_by_name else path)
        nodes.append(changed)
    _refuse_moved(picture, begun, places)
    return Changes(nodes, places)


def _refuse_moved(picture: Picture, begun: FirstPicture, places: list[str]) -> None:
    """Refuse a loop over another object than at its first time, and another `with` block: nobody can replace them."""
    for node, place, path in zip(picture.nodes, places, picture.paths, strict=True):
        before = begun.nodes.get(place)
        if before is None or node.kind not in ("iterator", "frame"):
            continue
        there = dict(before.parts)
        for label, part in node.parts:
            if node.kind == "frame" and not str(label).startswith("loop-"):
                continue
            inner = None if isinstance(part, list) else picture.nodes[part]
            if node.kind == "frame" and inner is not None and (inner.kind, inner.fixed) == ("iterator", KEPT):
                picture.refusals.append((path, "this loop is over a dict, a set or a text, and not over a list of it"))
            elif inner is None or places[part] == NEW:
                if not (inner is not None and _is_same_method(inner, there.get(label), begun, places)):
                    picture.refusals.append((path, "this loop is over another object than at its first time"))
            elif places[part] != there.get(label):
                picture.refusals.append((path, "this loop is over another object than at its first time"))


def _is_same_method(node: ObjectNode, there: Any, begun: FirstPicture, places: list[str]) -> bool:
    """Say whether a method, which Python makes anew each time it is asked for, is that of the same object."""
    before = begun.nodes.get(there) if isinstance(there, str) else None
    if before is None or node.kind != "method" or before.kind != "method" or before.head != node.head:
        return False
    owner = node.parts[0][1]
    return bool((owner if isinstance(owner, list) else places[owner]) == before.parts[0][1])


def changed_variables(picture: Picture, begun: FirstPicture) -> list[Any]:
    """Return the variables of modules that hold something else than at the beginning; refuse deleted ones."""
    names = {f"{module}.{name}" for module, entries in picture.globals for name, _ in entries}
    picture.refusals += [(name, "this variable was deleted") for name in begun.variables if name not in names]
    known = [begun.path_of(value, node) for value, node in zip(picture.objects, picture.nodes, strict=True)]
    return [
        [
            module,
            [
                [name, part]
                for name, part in entries
                if f"{module}.{name}" not in begun.variables
                or _are_others(begun.variables[f"{module}.{name}"], part if isinstance(part, list) else known[part])
            ],
        ]
        for module, entries in picture.globals
    ]


def _changed(before: ObjectNode, node: ObjectNode, known: list[str]) -> list[Any]:
    """Return a node with what has changed in it, and whether anything has; what has not is left to the script."""
    parts = [[label, part if isinstance(part, list) else known[part]] for label, part in node.parts]
    head = node.head
    if node.kind == "iterator":
        head = _advance(before, node)
    if node.kind in _NAMED and not (node.kind == "object" and head[1]):
        there = dict(before.parts)
        kept = [
            both
            for both, (label, part) in zip(node.parts, parts, strict=True)
            if label not in there or _are_others(there[label], part)
        ]
        return [node.kind, node.fixed, head, kept, bool(kept) or _differ(before, node)]
    return [node.kind, node.fixed, head, node.parts, _differ(before, node) or _are_others(before.parts, parts)]


def _differ(before: ObjectNode, node: ObjectNode) -> bool:
    if node.kind in ("array", "generator of random numbers"):
        return plain_data.encode(before.head) != plain_data.encode(node.head)
    return _are_others(before.head, node.head)


def _are_others(before: object, now: object) -> bool:
    """Say whether plain values differ, also where they are equal: 1, 1.0 and True do, and 0.0 and -0.0."""
    return repr(before) != repr(now)


def _why_not(before: ObjectNode, node: ObjectNode) -> str:
    """Return why an object cannot be brought from one state to another; empty if it can."""
    if before.kind != node.kind or before.fixed != node.fixed:
        return f"this {_words(node)} has changed in a way that cannot be put back"
    if node.kind == "frame" and not {*before.head} <= {*node.head}:
        return "a variable was deleted"
    if node.kind in _NAMED[1:] and not (node.kind == "object" and (before.head[1] or node.head[1])):
        labels = {label for label, _ in node.parts}
        deleted = [label for label, _ in before.parts if label not in labels]
        if deleted:
            return f"its attribute {deleted[0]} was deleted"
    if node.kind == "optimizer":
        groups = [[names for _, names in each.head] for each in (before, node)]
        if groups[1][: len(groups[0])] != groups[0]:
            return "its groups of parameters have changed"
    try:
        if node.kind == "iterator":
            _advance(before, node)
    except Unclear as reason:
        return str(reason)
    return ""


def _advance(before: ObjectNode, node: ObjectNode) -> Any:
    """Return how the iterator of a node is brought to its position."""
    return advance(IteratorPosition(node.fixed, before.head), IteratorPosition(node.fixed, node.head))


def _is_alike(before: ObjectNode, node: ObjectNode) -> bool:
    """Say whether an object of another process is that of a node; a model there has not made a step yet."""
    is_same = node.kind not in ("iterator", "frame", "object", "function", "function that yields")
    return before.kind == node.kind and (is_same or before.fixed == node.fixed)


def _can_be_made(node: ObjectNode) -> bool:
    if node.kind in ("object", "named tuple"):
        return node.head[0] is not None
    if node.kind in ("fixed", "class", "function"):
        return node.head is not None or node.fixed == "ended"
    return node.kind in _CREATED and not (isinstance(node.head, list) and len(node.head) == 2 and node.head[1] is None)


def _words(node: ObjectNode) -> str:
    if node.kind in ("object", "named tuple"):
        return str(node.fixed[1])
    return str(node.fixed[0]) if node.kind == "module" else node.kind


class Placing:
    """Objects of this process for the nodes of a saved picture."""

    def __init__(
        self, nodes: list[Any], places: list[str], live: Picture, passes: Passes, weights: Mapping[str, torch.Tensor]
    ) -> None:
        self._nodes = [ObjectNode(*node[:-1]) for node in nodes]
        self._changed = [number for number, node in enumerate(nodes) if node[-1]]
        self._places, self._passes, self._weights = places, passes, weights
        self._here = dict(zip(live.paths, live.objects, strict=True))
        self._kinds = dict(zip(live.paths, live.nodes, strict=True))
        self._made: dict[int, Any] = {}

    def put(self) -> None:
        """Give all objects what they held."""
        for number in self._changed:
            node = self._nodes[number]
            fill = getattr(self, "fill_" + node.kind.replace(" ", "_"), None)
            if fill is not None:
                fill(self._object(number), node)

    def value(self, reference: Any) -> Any:
        """Return the value of a reference."""
        return reference[0] if isinstance(reference, list) else self._object(reference)

    def _object(self, number: int) -> Any:
        if number not in self._made:
            node, place = self._nodes[number], self._places[number]
            if place:
                before = self._kinds.get(place)
                if before is None or not _is_alike(before, node):
                    raise _gone(place)
                self._made[number] = self._here[place]
            else:
                self._made[number] = self._make(node)
        return self._made[number]

    def _values(self, node: ObjectNode) -> list[Any]:
        return [self.value(part) for _, part in node.parts]

    def _make(self, node: ObjectNode) -> Any:
        kind, head = node.kind, node.head
        if kind in ("list", "set"):
            return [] if kind == "list" else set()
        if kind == "deque":
            return collections.deque(maxlen=node.fixed)
        if kind == "dict":
            return {} if node.fixed == "dict" else class_of("collections", node.fixed)()
        if kind in ("tuple", "frozenset"):
            return (tuple if kind == "tuple" else frozenset)(self._entries(node))
        if kind == "tensor":
            shape, dtype, device = node.fixed
            return hollow.of_shape(tuple(shape), getattr(torch, dtype.partition(".")[2]), device)
        if kind == "weight":
            if node.fixed not in self._weights:
                raise _gone(f"weight.{node.fixed}")
            return self._weights[node.fixed]
        if kind == "object":
            made_kind = class_of(*head[0])
            return layout_of(made_kind).__new__(made_kind)
        if kind == "named tuple":
            return tuple.__new__(class_of(*head[0]), self._values(node)[: head[1]])
        return self._make_other(node)

    def _make_other(self, node: ObjectNode) -> Any:
        if node.kind == "value":
            return node.head
        if node.kind == "array":
            return node.head[1].copy()
        if node.kind == "method":
            return getattr(self.value(node.parts[0][1]), node.head)
        if node.kind == "partial":
            function, *rest = self._values(node)
            names = [label for label, _ in node.parts[1:]]
            keywords = {name: value for name, value in zip(names, rest, strict=True) if isinstance(name, str)}
            return functools.partial(function, *rest[: len(rest) - len(keywords)], **keywords)
        if node.kind == "pass":
            return self._passes.repeated(self.value(node.parts[0][1]), node.head)
        if node.fixed == "ended":
            return iter(())
        module, name = node.head
        return class_of(module, name) if name else sys.modules[module]

    def _entries(self, node: ObjectNode) -> list[Any]:
        if node.head is None:
            return self._values(node)
        if node.head[0] == "floats":
            return [*array.array("d", node.head[1])]
        return list(node.head[1])

    def fill_list(self, value: list[Any], node: ObjectNode) -> None:
        if node.head is None or node.head[1] is not None:
            value[:] = self._entries(node)

    def fill_set(self, value: Any, node: ObjectNode) -> None:
        value.clear()
        value.update(self._values(node))

    def fill_deque(self, value: Any, node: ObjectNode) -> None:
        if node.head is None or node.head[1] is not None:
            value.clear()
            value.extend(self._entries(node))

    def fill_dict(self, value: Any, node: ObjectNode) -> None:
        values = self._values(node)
        if node.fixed == "defaultdict":
            value.default_factory = values.pop(0)
        value.clear()
        for key, entry in zip(values[: node.head], values[node.head : 2 * node.head], strict=True):
            value[key] = entry  # update() of a Counter counts
        for attributes in values[2 * node.head :]:
            vars(value).update(attributes)

    def _replace(self, value: dict[Any, Any], keys: list[Any], entries: list[Any]) -> None:
        dict.clear(value)
        for key, entry in zip(keys, entries, strict=True):
            dict.__setitem__(value, key, entry)

    def fill_weight(self, weight: torch.Tensor, node: ObjectNode) -> None:
        if weight.requires_grad != node.head:
            weight.requires_grad_(node.head)

    def fill_array(self, value: Any, node: ObjectNode) -> None:
        if node.head[1] is not None:
            value[...] = node.head[1]

    def fill_object(self, value: Any, node: ObjectNode) -> None:
        _, num_entries, names = node.head
        values = self._values(node)
        base = layout_of(type(value))
        if base is dict:
            self._replace(value, values[: num_entries // 2], values[num_entries // 2 : num_entries])
        elif base is list:
            list.__setitem__(value, slice(None), values[:num_entries])
        own = vars(value) if hasattr(value, "__dict__") else {}
        for name in [name for name in own if name not in names]:
            del own[name]
        slots = slots_of(type(value))
        for (label, _), entry in zip(node.parts[num_entries:], values[num_entries:], strict=True):
            if label in slots:
                object.__setattr__(value, label, entry)
            elif label != CLASS:
                own[label] = entry

    def fill_module(self, module: nn.Module, node: ObjectNode) -> None:
        module.training = node.head[0]
        weights = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for (_, weight), is_trained in zip(weights, node.head[1], strict=True):
            if weight.requires_grad != is_trained:
                weight.requires_grad_(is_trained)
        for (label, _), value in zip(node.parts, self._values(node), strict=True):
            if label in module._modules:
                module._modules[label] = value
            elif module.__dict__.get(label) is not value:
                module.__dict__[label] = value

    def fill_optimizer(self, optimizer: Any, node: ObjectNode) -> None:
        for number, (options, names) in enumerate(node.head):
            if number == len(optimizer.param_groups):
                optimizer.param_groups.append({"params": [self._weights[name] for name in names]})
            optimizer.param_groups[number].update(options)
        for (label, _), value in zip(node.parts, self._values(node), strict=True):
            vars(optimizer)[label] = value

    def fill_pass(self, value: Any, node: ObjectNode) -> None:
        value.put_place(node.head, self.value(node.parts[0][1]))

    def fill_generator_of_random_numbers(self, value: Any, node: ObjectNode) -> None:
        put_state(value, node.head)

    def fill_iterator(self, value: Any, node: ObjectNode) -> None:
        put_position(value, node.fixed, node.head)

    def fill_class(self, value: type, node: ObjectNode) -> None:
        for (label, _), entry in zip(node.parts, self._values(node), strict=True):
            if vars(value).get(label) is not entry:
                type.__setattr__(value, label, entry)

    def fill_function(self, value: FunctionType, node: ObjectNode) -> None:
        for (label, _), entry in zip(node.parts, self._values(node), strict=True):
            if label.startswith("closure-"):
                names = value.__code__.co_freevars
                (value.__closure__ or ())[names.index(label[len("closure-") :])].cell_contents = entry
            elif label == "defaults":
                value.__defaults__ = entry
            elif label == "keywords":
                value.__kwdefaults__ = entry
            else:
                vars(value)[label] = entry

    def fill_frame(self, frame: FrameType, node: ObjectNode) -> None:
        values = zip(node.parts, self._values(node), strict=True)
        put_variables(frame, {label: value for (label, _), value in values if label in node.head})


def _gone(path: str) -> ScalingError:
    return ScalingError(
        f"the script goes another way than before the checkpoint: {path.partition('.')[2]} is not what it was there",
        "let the script decide by values that are the same in each start; or start it without --resume",
    )
