"""What changes itself while a loop is repeated without it: models and their hooks, optimizers, data sets, samplers.

Their objects get what they held at the checkpoint wherever the repeated loop has left something else in them.
"""

import dis
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.utils.data import IterableDataset

from ..loops import may_have_state
from ..modules import hooks_of_script
from .carried import modules_of_script
from .changes import IMMUTABLE, NAMED, are_others, can_be_made, changed_variables, changes_of, differ
from .passes import Passes
from .picture import MOST_OBJECTS, NEW, FirstPicture, ObjectNode, Picture, without_collector
from .placing import Placing, is_alike
from .state import ScriptObjects

_NOT_HERE = ("frame", "iterator", "function that yields", "pass")
"""What the repeated loop itself has brought to its place."""


_MOST_BYTES = 1 << 26


class LeftOut:
    def __init__(self, objects: ScriptObjects, passes: Passes, say: Callable[[str], None]) -> None:
        self._objects, self._passes, self._say = objects, passes, say
        self._begun: FirstPicture | None = None
        passes.held_by, passes.put_held = self.held_by, self.put_held

    def begin(self) -> None:
        with suppress(Exception), without_collector():  # the script's own classes may fail in their own way
            picture = self._picture(None)
            if len(picture.nodes) <= MOST_OBJECTS:
                self._begun = picture.begun()

    def content(self) -> dict[str, Any]:
        if self._begun is None:
            return {}
        try:
            with without_collector():
                return self._changes(self._begun)
        except Exception as error:  # noqa: BLE001  # the script's own classes may fail in their own way
            self._begun = None
            self._say(
                "note: a continued run has what models, hooks and data sets keep besides tensors as it was before the "
                f"loop, because it cannot be looked at: {error!r}"
            )
            return {}

    def _changes(self, begun: FirstPicture) -> dict[str, Any]:
        picture = self._picture(begun)
        nodes, places = changes_of(picture, begun)
        stored = {name for module in modules_of_script().values() for name in _stored_by(vars(module).values())}
        variables = [
            [module, [[name, part] for name, part in entries if name in stored]]
            for module, entries in changed_variables(picture, begun)
        ]
        return {"nodes": nodes, "places": places, "paths": picture.paths, "globals": variables}

    def put(self, content: Mapping[str, Any]) -> None:
        if content:
            gc.collect()  # a model that is garbage in one process may not be in another
            self._put(content, self._picture(None))

    def held_by(self, loader: Any) -> dict[str, Any]:
        """Return what the sampler of a loader holds, or its stream; empty where a pass over it changes nothing."""
        with suppress(Exception), without_collector():
            picture = self._picture_of(loader)
            if 0 < len(picture.nodes) <= MOST_OBJECTS:
                nodes = [[*node, node.kind != "tensor"] for node in picture.nodes]
                tensors = {
                    path: value.detach().clone()
                    for path, value, node in zip(picture.paths, picture.objects, picture.nodes, strict=True)
                    if node.kind == "tensor" and value.numel() * value.element_size() <= _MOST_BYTES
                }
                places = [NEW] * len(nodes)
                return {"nodes": nodes, "places": places, "paths": picture.paths, "globals": [], "tensors": tensors}
        return {}

    def put_held(self, loader: Any, content: Mapping[str, Any]) -> None:
        """Let the sampler of a loader, or its stream, hold what it has held."""
        live = self._picture_of(loader)
        self._put(content, live)
        for path, value in zip(live.paths, live.objects, strict=True):
            saved = content["tensors"].get(path)
            if saved is not None and saved.shape == value.shape and not torch.equal(saved, value):
                value.detach().copy_(saved)

    def _picture_of(self, loader: Any) -> Picture:
        picture = Picture(self._objects.names_of_weights(), modules_of_script().__contains__, None)
        picture.writes_all = True
        if isinstance(loader.dataset, IterableDataset):
            picture.add(loader.dataset, "dataset")
        elif may_have_state(loader.batch_sampler):
            picture.add(loader.batch_sampler, "sampler")
        return picture

    def _put(self, content: Mapping[str, Any], live: Picture) -> None:
        saved = Restored(content, live)
        nodes = [[*node, is_other] for node, is_other in zip(saved.nodes, saved.others(), strict=True)]
        placing = Placing(nodes, saved.places, live, self._passes, self._objects.weights())
        placing.put()
        modules = modules_of_script()
        for module, entries in content["globals"]:
            for name, part in entries:
                if module in modules and (isinstance(part, list) or saved.is_known(part)):
                    vars(modules[module])[name] = placing.value(part)

    def _picture(self, begun: FirstPicture | None) -> Picture:
        modules = modules_of_script()
        picture = Picture(self._objects.names_of_weights(), modules.__contains__, begun)
        # a compiled model runs none of the script's Python, and its attributes lead into PyTorch's own objects
        models = [one for one in self._objects.models() if not any(map(_is_compiled, one.modules()))]
        for kind, objects in (("model", models), ("optimizer", self._objects.optimizers())):
            for number, value in enumerate(objects):
                picture.add(value, f"{kind}-{number}")
        for number, model in enumerate(models):
            for name, module in model.named_modules():
                for kind, hooks in hooks_of_script(module).items():
                    for place, hook in enumerate(hooks.values()):
                        picture.add(hook, f"model-{number}.{name}.{kind}.{place}")
        for loader, number in sorted(self._passes.begun.items(), key=lambda item: item[1]):
            for kind in ("dataset", "sampler", "batch_sampler", "collate_fn"):
                picture.add(getattr(loader, kind, None), f"loader-{number}.{kind}")
        for name, module in modules.items():
            picture.add_globals(module, name, None)
        return picture


def _is_compiled(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


class Restored:
    """The objects of a checkpoint, and where those of this process are that take their places."""

    def __init__(self, content: Mapping[str, Any], live: Picture) -> None:
        self._there = live.begun().nodes
        self._flags = [bool(node[-1]) for node in content["nodes"]]
        self.nodes: list[ObjectNode] = []
        self.places: list[Any] = []
        """For each node the path of an object of this process; NEW: it is made; None: it stays as it is."""
        for node, *paths in zip(content["nodes"], content["paths"], content["places"], strict=True):
            self._add(ObjectNode(*node[:-1]), *paths)
        while (places := [self._place_by_parts(number) for number in range(len(self.nodes))]) != self.places:
            self.places = places
        for number, node in enumerate(self.nodes):
            if node.kind in NAMED:
                self.nodes[number] = node._replace(parts=[part for part in node.parts if self.is_known(part[1])])

    def _add(self, node: ObjectNode, path: str, before: str) -> None:
        place = next((one for one in (path, before) if _can_be(self._there.get(one), node)), None)
        is_changed = self._flags[len(self.nodes)]
        if node.kind == "optimizer" and place is not None:
            node = node._replace(head=self._there[place].head)  # its settings are saved as such
        if place is None:
            place = NEW if before == NEW and can_be_made(node) else None
        elif is_changed and node.kind in IMMUTABLE and self._has_other_head(place, node) and can_be_made(node):
            place = NEW
        self.nodes.append(node)
        self.places.append(None if node.kind in _NOT_HERE else place)

    def is_known(self, part: Any) -> bool:
        return isinstance(part, list) or self.places[part] is not None

    def others(self) -> list[bool]:
        """Return for each node whether its object holds something else in this process."""
        return [
            place == NEW or (place is not None and is_changed and self._is_other(place, node))
            for node, place, is_changed in zip(self.nodes, self.places, self._flags, strict=True)
        ]

    def _place_by_parts(self, number: int) -> str | None:
        node = self.nodes[number]
        place: str | None = self.places[number]
        if node.kind in NAMED or place is None:
            return place
        if not all(self.is_known(part) for _, part in node.parts):
            return None
        is_made_again = self._flags[number] and node.kind in IMMUTABLE and can_be_made(node)
        return NEW if place != NEW and is_made_again and self._has_other_parts(place, node) else place

    def _is_other(self, place: str, node: ObjectNode) -> bool:
        return self._has_other_head(place, node) or self._has_other_parts(place, node)

    def _has_other_head(self, place: str, node: ObjectNode) -> bool:
        return node.kind != "tensor" and differ(self._there[place], node)

    def _has_other_parts(self, place: str, node: ObjectNode) -> bool:
        there = self._there[place].parts
        parts = [[label, part if isinstance(part, list) else self.places[part]] for label, part in node.parts]
        if node.kind not in NAMED:
            return are_others(there, parts)
        named = dict(there)
        return any(label not in named or are_others(named[label], part) for label, part in parts)


def _can_be(there: ObjectNode | None, node: ObjectNode) -> bool:
    if there is None or not is_alike(there, node):
        return False
    return node.kind != "module" or (there.fixed[0], there.fixed[3]) == (node.fixed[0], node.fixed[3])


def _stored_by(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        function = getattr(value, "__func__", getattr(value, "fget", getattr(value, "__wrapped__", value)))
        if isinstance(function, FunctionType):
            yield from _stored(function.__code__)
        elif isinstance(value, type) and value.__module__ in modules_of_script():
            yield from _stored_by(vars(value).values())


@lru_cache(maxsize=1024)
def _stored(code: CodeType) -> frozenset[str]:
    own = {one.argval for one in dis.get_instructions(code) if one.opname == "STORE_GLOBAL"}
    return frozenset(own.union(*(_stored(inner) for inner in code.co_consts if isinstance(inner, CodeType))))
