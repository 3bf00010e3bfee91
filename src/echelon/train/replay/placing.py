"""Put a picture of a script's variables into those of a process that has come to the same place for the first time."""

import array
import collections
import functools
import sys
from collections.abc import Mapping
from types import FrameType, FunctionType
from typing import Any

import torch
from torch import nn

from ..rng.states import put_state
from ..scaling_error import ScalingError
from . import hollow
from .changes import are_others
from .iterator_positions import put_position
from .object_parts import layout_of, slots_of
from .passes import Passes
from .picture import CLASS, ObjectNode, Picture, form_of
from .tape import class_of
from .value_stack import put_variables


def is_alike(before: ObjectNode, node: ObjectNode) -> bool:
    """Say whether an object of another process is that of a node; a model there has not made a step yet."""
    is_same = node.kind not in ("iterator", "frame", "object", "function", "function that yields")
    return before.kind == node.kind and (is_same or before.fixed == node.fixed)


class Placing:
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
        for number in self._changed:
            node = self._nodes[number]
            fill = getattr(self, "fill_" + node.kind.replace(" ", "_"), None)
            if fill is not None:
                fill(self._object(number), node)

    def value(self, reference: Any) -> Any:
        return reference[0] if isinstance(reference, list) else self._object(reference)

    def _object(self, number: int) -> Any:
        if number not in self._made:
            node, place = self._nodes[number], self._places[number]
            if place:
                before = self._kinds.get(place)
                if before is None or not is_alike(before, node):
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
            return hollow.of_shape(tuple(shape), _dtype_of(dtype), device)
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
            values = self._values(node)
            made = functools.partial(values[0])
            made.__setstate__(tuple(values))  # type: ignore[attr-defined]  # it keeps these very dicts
            return made
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
        for weight, is_trained in zip(module.parameters(recurse=False), node.head[1], strict=True):
            if weight.requires_grad != is_trained:
                weight.requires_grad_(is_trained)
        for name, form in node.head[2]:
            buffer = module._buffers.get(name)
            if form is None:
                module._buffers[name] = None
            elif buffer is None or are_others(form_of(buffer), form):
                shape, dtype, device = form
                module._buffers[name] = torch.zeros(shape, dtype=_dtype_of(dtype), device=device)
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

    def fill_fixed(self, value: Any, node: ObjectNode) -> None:
        vars(value).update({label: entry for (label, _), entry in zip(node.parts, self._values(node), strict=True)})

    def fill_frame(self, frame: FrameType, node: ObjectNode) -> None:
        values = zip(node.parts, self._values(node), strict=True)
        put_variables(frame, {label: value for (label, _), value in values if label in node.head})


def _dtype_of(name: str) -> torch.dtype:
    return getattr(torch, name.partition(".")[2])  # type: ignore[no-any-return]


def _gone(path: str) -> ScalingError:
    return ScalingError(
        f"the script goes another way than before the checkpoint: {path.partition('.')[2]} is not what it was there",
        "let the script decide by values that are the same in each start; or start it without --resume",
    )
