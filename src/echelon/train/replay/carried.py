"""Values that a script carries from step to step in its own variables, found from the frames of its functions."""

import os
import sys
import weakref
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from types import FrameType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from ...pytorch import internals
from ..global_tensors.tensors import GlobalTensor, plain
from ..modules import FormerWeight
from ..rng.states import is_generator, of_loader, put_state, state_of
from ..rng.workers_draws import generators_of
from ..scaling_error import ScalingError
from ..wire.gather import is_dtensor, whole
from .hollow import ShapeOnlyTensor
from .object_parts import filled_cells, slots_of
from .tape import is_ours_frame, is_ours_name
from .value_stack import live_names, put_variables

_LIBRARIES = ("torch", "numpy", "echelon", "_echelon", "builtins")
_MOST_DEPTH = 6
_MOST_OBJECTS = 200_000
_MOST_ENTRIES = 100_000
_MOST_BYTES = 1 << 20
"""A result of a model that is larger than this is not kept: the next step makes a new one."""
_MOST_COUNTS = 2000


class ScriptVariables:
    """The tensors and counts in the script's variables."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[Any, int]] = {}

    def begin(self) -> None:
        """Note the tensors that are there before the loop; those that stay unchanged are made again by the script."""
        for _, tensor in _tensors(()):
            self._before[id(tensor)] = (weakref.ref(tensor), internals.version(tensor))

    def tensors(self, known: set[int], unread: Container[str]) -> dict[str, torch.Tensor]:
        """Return the tensors to keep, by their paths.

        `known` are the ids of those that models and optimizers have, and `unread` the variables that the script does
        not read again.
        """
        kept = {}
        for path, tensor in _tensors(unread):
            if id(tensor) in known or self._is_unchanged(tensor) or isinstance(tensor, (ShapeOnlyTensor, FormerWeight)):
                continue
            if isinstance(tensor, GlobalTensor):
                if _num_bytes(tensor) <= _MOST_BYTES:
                    kept[path] = plain(tensor).detach().clone()
                continue
            is_transient = tensor.grad_fn is not None and _num_bytes(tensor) > _MOST_BYTES
            if not is_transient and tensor.layout == torch.strided and not tensor.is_meta:
                kept[path] = tensor.detach()
        return kept

    def put(self, kept: dict[str, torch.Tensor], unread: Container[str]) -> list[str]:
        """Give the script's variables the values of the checkpoint; return the paths for which there is no variable."""
        every = [found for found in _holders(unread) if isinstance(found.tensor, torch.Tensor)]
        here = {found.path: found for found in _first_of_each(every)}
        for path, value in kept.items():
            found = here.get(path)
            if found is None:
                continue
            if isinstance(found.tensor, ShapeOnlyTensor):
                found.tensor.value = value.to(found.tensor.device)  # for all who hold it
                found.replace(found.tensor.value)
            elif is_dtensor(value):
                _replace_everywhere(found, value, every)
            elif found.tensor.shape == value.shape:
                with torch.no_grad():
                    found.tensor.data.copy_(value)
        return [path for path in kept if path not in here]

    def _is_unchanged(self, tensor: torch.Tensor) -> bool:
        reference, version = self._before.get(id(tensor), (lambda: None, -1))
        return reference() is tensor and version == internals.version(tensor)


def _num_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def cut_like(kept: dict[str, Any], weights: Mapping[str, Any]) -> dict[str, str]:
    """Return for each kept tensor that is cut as a weight is (a DTensor) the name of that weight.

    Other DTensors, such as a norm over all ranks, become whole in `kept`; every rank takes part.
    """
    names: dict[tuple[Any, ...], str] = {}
    for name, one in weights.items():
        if is_dtensor(one):
            names.setdefault(_cut(one), name)
    cut = {}
    for path, one in kept.items():
        if is_dtensor(one) and _cut(one) in names:
            cut[path] = names[_cut(one)]
        else:
            kept[path] = whole(one)
    return cut


def _cut(tensor: Any) -> tuple[Any, ...]:
    return tuple(tensor.shape), tuple(tensor.placements)


def counts() -> dict[str, int]:
    value_of: dict[str, int] = {}
    for frame, name in _script_frames():
        for key, value in frame.f_locals.items():
            if type(value) is int and not key.startswith("__") and len(value_of) < _MOST_COUNTS:
                value_of[f"{name}.{key}"] = int(value)
    return value_of


def changed_counts(before: Mapping[str, int], unread: Container[str]) -> dict[str, int]:
    """Return the whole numbers that have changed, and that the script reads again; others may be of this process."""
    now = {path: value for path, value in counts().items() if path not in unread}
    return {path: value for path, value in now.items() if path in before and before[path] != value}


def random_states() -> dict[str, Any]:
    return {found.path: state_of(found.tensor) for found in _first_of_each(_holders()) if is_generator(found.tensor)}


def put_random_states(saved: dict[str, Any]) -> None:
    for found in _first_of_each(_holders()):
        if is_generator(found.tensor) and found.path in saved:
            put_state(found.tensor, saved[found.path])


class Found(NamedTuple):
    """A tensor or a generator of random numbers, and the variable, entry or attribute that holds it."""

    path: str
    tensor: Any
    holder: Any
    key: Any

    def replace(self, tensor: torch.Tensor) -> None:
        """Let the holder have another tensor; a tuple keeps what it has."""
        if isinstance(self.holder, FrameType):
            put_variables(self.holder, {self.key: tensor})
        elif isinstance(self.holder, (dict, list, deque)):
            self.holder[self.key] = tensor
        elif isinstance(self.holder, FunctionType) and self.key in filled_cells(self.holder):
            filled_cells(self.holder)[self.key].cell_contents = tensor
        elif isinstance(self.holder, type):
            type.__setattr__(self.holder, self.key, tensor)
        elif not isinstance(self.holder, tuple):
            object.__setattr__(self.holder, self.key, tensor)


def ids_of_tensors(unread: Container[str]) -> set[int]:
    return {id(tensor) for _, tensor in _tensors(unread)}


def _tensors(unread: Container[str]) -> Iterator[tuple[str, torch.Tensor]]:
    found = _first_of_each(_holders(unread))
    return ((one.path, one.tensor) for one in found if isinstance(one.tensor, torch.Tensor))


def _first_of_each(holders: Iterable[Found]) -> Iterator[Found]:
    """Yield each tensor and generator once, with the first that holds it."""
    seen: set[int] = set()
    for found in holders:
        if id(found.tensor) not in seen:
            seen.add(id(found.tensor))
            yield found


def _replace_everywhere(found: Found, value: torch.Tensor, holders: Iterable[Found]) -> None:
    for other in holders:
        if other.tensor is found.tensor:
            if isinstance(other.holder, tuple):
                raise ScalingError(
                    f"{other.path} is in a tuple, and it was a part on each rank when it was saved",
                    "keep such tensors in a list; or echelon run --scale data --resume …",
                )
            other.replace(value)


def _holders(unread: Container[str] = ()) -> Iterator[Found]:
    """Yield each tensor and generator as often as something holds it, but not those of unread variables."""
    seen: set[int] = set()
    for frame, name in _script_frames():
        for key, value in list(frame.f_locals.items()):
            if not key.startswith("__") and f"{name}.{key}" not in unread:
                yield from _within(value, (frame, key), f"{name}.{key}", seen, 0)
    shown = {frame.f_globals.get("__name__") for frame, _ in _script_frames()}
    for name, module in modules_of_script().items():
        if name not in shown:
            yield from _within(vars(module), (None, None), name, seen, 0)


def _within(value: object, place: tuple[Any, Any], path: str, seen: set[int], depth: int) -> Iterator[Found]:
    if isinstance(value, torch.Tensor) or is_generator(value):
        yield Found(path, value, *place)
        return
    if isinstance(value, torch.utils.data.DataLoader):
        seen.add(id(value))
        for number, generator in enumerate([*of_loader(value), *generators_of(value.dataset)]):
            yield from _within(generator, (None, None), f"{path}.generator-{number}", seen, depth)
        for key in ("dataset", "sampler", "batch_sampler", "collate_fn"):
            yield from _within(getattr(value, key, None), (value, key), f"{path}.{key}", seen, depth + 1)
        return
    if depth > _MOST_DEPTH or len(seen) > _MOST_OBJECTS or id(value) in seen:
        return
    if isinstance(value, dict):
        seen.add(id(value))
        entries: Any = value.items() if len(value) <= _MOST_ENTRIES else ()
    elif isinstance(value, (list, tuple, deque)):
        seen.add(id(value))
        entries = enumerate(value) if len(value) <= _MOST_ENTRIES else ()
    elif isinstance(value, GeneratorType) and value.gi_frame is not None:
        seen.add(id(value))
        frame = value.gi_frame
        live = live_names(frame)
        value, entries = frame, [(key, entry) for key, entry in frame.f_locals.items() if key in live]
    else:
        entries = _attributes(value, seen)
    for key, entry in list(entries):
        yield from _within(entry, (value, key), f"{path}.{key}", seen, depth + 1)


def _attributes(value: object, seen: set[int]) -> Any:
    """Return the attributes of an object; models and optimizers keep their tensors with their own names."""
    kind = value if isinstance(value, type) else type(value)
    if isinstance(value, FunctionType):
        attributes = {**vars(value), **{name: cell.cell_contents for name, cell in filled_cells(value).items()}}
    elif isinstance(value, MethodType):
        attributes = {"self": value.__self__}
    elif isinstance(value, partial):
        attributes = {"function": value.func, "arguments": value.args, "keywords": value.keywords}
    elif (
        (kind is value and kind.__module__ not in modules_of_script())
        or isinstance(value, (ModuleType, torch.optim.Optimizer))
        or (kind.__module__.partition(".")[0] in _LIBRARIES and not kind.__module__.startswith("torch.utils.data."))
    ):
        return ()
    else:
        slots = () if kind is value else slots_of(kind)
        attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)}
        attributes.update(getattr(value, "__dict__", {}))
    seen.add(id(value))
    own = ("_parameters", "_buffers", "_modules") if isinstance(value, nn.Module) else ()
    return [(key, entry) for key, entry in attributes.items() if key not in own]


def _script_frames() -> Iterator[tuple[FrameType, str]]:
    """Yield the frames of the script and of the modules beside it, from the outermost, with names."""
    return (pair for pair in frames_with_names() if pair[1])


def frames_with_names() -> Iterator[tuple[FrameType, str]]:
    """Yield all frames, from the outermost, with names for those of the script and of the modules beside it."""
    frames, folder, main = [], _folder_of_script(), vars(sys.modules["__main__"])
    frame: Any = sys._getframe(1)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    place = 0
    for one in reversed(frames):
        if one.f_globals is main or (_is_beside(one.f_code.co_filename, folder) and not is_ours_frame(one)):
            yield one, f"{place}:{one.f_code.co_name}"
            place += 1
        else:
            yield one, ""


def modules_of_script() -> Mapping[str, ModuleType]:
    """Return the script's modules by name: the script itself, and those in its folder."""
    return _modules_beside(_folder_of_script(), len(sys.modules))


@lru_cache(maxsize=1)
def _modules_beside(folder: str, _num_modules: int) -> Mapping[str, ModuleType]:
    return {
        module.__name__: module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType)
        and not is_ours_name(name)
        and (name == "__main__" or _is_beside(str(getattr(module, "__file__", None) or ""), folder))
    }


def _folder_of_script() -> str:
    main = sys.modules.get("__main__")
    return os.path.dirname(os.path.abspath(str(getattr(main, "__file__", "") or "")))


def _is_beside(path: str, folder: str) -> bool:
    """Say whether a file is in the folder of the script, and in no environment of Python there."""
    return path.startswith(folder + os.sep) and "-packages" not in path
