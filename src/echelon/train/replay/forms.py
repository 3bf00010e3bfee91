"""Forms of values: everything but the numbers of their tensors. The journal keeps each form once."""

import sys
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import torch

from .. import plain_data
from ..scaling_error import ScalingError
from . import hollow

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


class Described(NamedTuple):
    """An object in a form: its class, and its attributes."""

    module: str
    name: str
    attributes: Dict[str, Any]


class Forms:
    """The forms that a journal refers to by number.

    >>> forms, again = Forms(), Forms()
    >>> entries = [forms.note((torch.ones(2, 3), size)) for size in (7, 7)]
    >>> [len(entry) for entry in entries]  # the second one only refers to the first
    [2, 1]
    >>> tensor, size = [again.hollow(entry) for entry in entries][1]
    >>> tuple(tensor.shape), size
    ((2, 3), 7)
    """

    def __init__(self) -> None:
        self._numbers: Dict[Any, int] = {}
        self._forms: List[Any] = []

    def note(self, value: Any) -> List[Any]:
        """Return an entry for a value: the number of its form, and the form itself the first time.

        Raises ScalingError for a value that is neither plain data nor an object of a class that can be found again.
        """
        quick = _of_tensor(value) if isinstance(value, torch.Tensor) else None
        if quick in self._numbers:
            return [self._numbers[quick]]
        shapes: List[Any] = []
        form = [_described(value, shapes), shapes]
        key: Any = plain_data.encode(form)
        if key in self._numbers:
            return [self._numbers[key]]
        self._numbers[key] = len(self._forms)
        if quick is not None:
            self._numbers[quick] = len(self._forms)
        self._forms.append(form)
        return [self._numbers[key], form]

    def hollow(self, entry: List[Any]) -> Any:
        """Return the value of an entry, with tensors that have no numbers."""
        if len(entry) > 1:
            self._numbers[plain_data.encode(entry[1])] = len(self._forms)
            self._forms.append(entry[1])
        form, shapes = self._forms[entry[0]]
        rest = iter(shapes)

        def tensor(empty: torch.Tensor) -> torch.Tensor:
            shape, device = next(rest)
            return hollow.of_shape(tuple(shape), empty.dtype, device)

        return _restored(form, tensor)


def _of_tensor(tensor: torch.Tensor) -> Tuple[Any, ...]:
    return (tuple(tensor.shape), tensor.dtype, tensor.device.type)


def _described(value: Any, shapes: List[Any]) -> Any:
    """Return a value with empty tensors, and with objects as plain data; shapes and devices go to `shapes`."""
    if isinstance(value, torch.Tensor):
        shapes.append([tuple(value.shape), value.device.type])
        return torch.empty(0, dtype=value.dtype)
    if isinstance(value, (list, tuple, dict)) and type(value) in (list, tuple, dict):
        return _mapped(value, lambda one: _described(one, shapes))
    if isinstance(value, _PLAIN) or type(value).__module__ == "numpy":
        return value
    kind = type(value)
    if _class(kind.__module__, kind.__qualname__) is not kind:
        raise ScalingError("a %s is made in a function" % kind.__qualname__, "make the class at the top of its file")
    entries = (
        list(value.items()) if isinstance(value, dict) else list(value) if isinstance(value, (list, tuple)) else []
    )
    held = {"entries": entries, "attributes": dict(getattr(value, "__dict__", {}))}
    return Described(kind.__module__, kind.__qualname__, _described(held, shapes))


def _restored(form: Any, tensor: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(form, torch.Tensor):
        return tensor(form)
    if isinstance(form, Described):
        return _object(_class(form.module, form.name), _restored(form.attributes, tensor))
    return _mapped(form, lambda one: _restored(one, tensor)) if type(form) in (list, tuple, dict) else form


def _object(kind: Any, held: Dict[str, Any]) -> Any:
    """Make an object of a class without its constructor, as copy.copy does."""
    entries = held["entries"]
    if issubclass(kind, tuple):
        made = tuple.__new__(kind, entries)
    elif issubclass(kind, dict):
        made = kind.__new__(kind)
        for key, value in entries:
            made[key] = value
    else:
        made = kind.__new__(kind)
        if entries:
            list.extend(made, entries)
    if held["attributes"]:
        made.__dict__.update(held["attributes"])
    return made


def _class(module: str, name: str) -> Any:
    """Return a class that has been imported; None if there is none."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: change(one) for key, one in value.items()}
    return type(value)([change(one) for one in value])
