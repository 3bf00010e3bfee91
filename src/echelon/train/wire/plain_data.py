"""Encode values for other ranks as JSON and raw bytes, and rebuild them; nothing that was received is executed.

Plain data can travel: numbers, text, bytes, tuples, lists, dicts, sets, tensors, numpy's arrays, and a few kinds of the
standard library. Errors, named tuples and dataclasses travel by name; the receiver takes only classes that it has
imported itself.
"""

import collections
import copyreg
import ctypes
import dataclasses
import datetime
import decimal
import fractions
import json
import pathlib
import struct
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable
from http.client import HTTPMessage
from typing import Any, NamedTuple

import torch

from ..function_types import Function, StateDict
from ..scaling_error import ScalingError


class KindRow(NamedTuple):
    """A kind of value; take_apart() handles kinds that name no class here."""

    kind: Any
    parts: Any
    build: Function


def bytes_at(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def take_apart(value: object) -> tuple[object, ...] | None:
    """Return the name of a value's kind and its parts; None for a value of another kind."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        array = numpy.asarray(value)
        is_plain = type(value) is numpy.ndarray or isinstance(value, numpy.generic)
        if array.dtype.hasobject or array.dtype.fields or not is_plain:
            return None
        return ("numpy", array.dtype.str, array.shape, array.tobytes(), isinstance(value, numpy.generic))
    name = _NAMES.get(type(value))
    if name is not None:
        return (name, *_ROWS[name].parts(value))
    if isinstance(value, pathlib.PurePath):
        return ("path", str(value))
    if isinstance(value, HTTPMessage):  # urllib.request.urlretrieve returns it
        return ("headers", list(value.items()))
    return None


def build(name: str, parts: list[object]) -> object:
    return _ROWS[name].build(*parts)


def is_ordered(kind: object) -> bool:
    """Say whether a class is a dictionary of the standard library that is built from its entries."""
    return kind in (collections.OrderedDict, collections.Counter)


def parts_of_error(error: BaseException) -> list[object] | None:
    """Return the arguments and the attributes from which an error can be rebuilt; None if it cannot."""
    kind = type(error)
    try:
        reduce: Any = copyreg.dispatch_table.get(kind)
        made: Any = error.__reduce__() if reduce is None else reduce(error)
        if made[0] is not kind or len(made) > 3:
            return None
        state = made[2] if len(made) == 3 and isinstance(made[2], dict) else {}
        error_of(kind, made[1], state)
    except Exception:  # noqa: BLE001  # the script's own class may fail in its own way
        return None
    return [tuple(made[1]), state]


def error_of(kind: type, arguments: tuple[object, ...], state: StateDict) -> BaseException:
    error: BaseException = kind(*arguments)
    for name, value in state.items():
        setattr(error, name, value)
    return error


def _array(dtype: str, shape: tuple[int, ...], content: bytes, is_scalar: bool) -> object:
    import numpy

    array = numpy.frombuffer(content, dtype=numpy.dtype(dtype)).reshape(shape)
    return array[()] if is_scalar else array.copy()


def _headers(items: list[tuple[str, str]]) -> HTTPMessage:
    made = HTTPMessage()
    for name, value in items:
        made[name] = value
    return made


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(name)
    return dtype


_ROWS: dict[str, KindRow] = {
    "complex": KindRow(complex, lambda one: (one.real, one.imag), complex),
    "slice": KindRow(slice, lambda one: (one.start, one.stop, one.step), slice),
    "range": KindRow(range, lambda one: (one.start, one.stop, one.step), range),
    "dtype": KindRow(torch.dtype, lambda one: (str(one).rpartition(".")[2],), _dtype),
    "device": KindRow(torch.device, lambda one: (str(one),), torch.device),
    "date": KindRow(datetime.date, lambda one: (one.isoformat(),), datetime.date.fromisoformat),
    "datetime": KindRow(datetime.datetime, lambda one: (one.isoformat(),), datetime.datetime.fromisoformat),
    "timedelta": KindRow(datetime.timedelta, lambda one: (one.days, one.seconds, one.microseconds), datetime.timedelta),
    "decimal": KindRow(decimal.Decimal, lambda one: (str(one),), decimal.Decimal),
    "fraction": KindRow(fractions.Fraction, lambda one: (one.numerator, one.denominator), fractions.Fraction),
    "uuid": KindRow(uuid.UUID, lambda one: (str(one),), uuid.UUID),
    "finished": KindRow(
        subprocess.CompletedProcess,
        lambda one: (one.args, one.returncode, one.stdout, one.stderr),
        subprocess.CompletedProcess,
    ),
    "path": KindRow(None, None, pathlib.Path),
    "headers": KindRow(None, None, _headers),
    "numpy": KindRow(None, None, _array),
}
_NAMES = {row.kind: name for name, row in _ROWS.items() if row.kind is not None}


_LARGEST_INT = 1 << 62
_REFUSAL = [ScalingError.__module__, ScalingError.__qualname__]  # as people know it; no module has it under that name
_HEAD = struct.Struct("<Q")
Blobs = list[bytes]


class _CannotTravel(Exception):
    """A value that is neither plain data nor a tensor."""


class NotPlain(ValueError):
    """The received bytes are no message of echelon."""


def encode(value: object, *, leaves_out: bool = False) -> bytes:
    """Return a value as bytes; refuse what cannot travel, or leave it out as None."""
    blobs: Blobs = []
    try:
        form = _form(value, blobs, leaves_out)
    except (_CannotTravel, RecursionError) as error:
        raise _refusal(error.args[0] if isinstance(error, _CannotTravel) else value) from None
    head = json.dumps([form, [len(blob) for blob in blobs]], separators=(",", ":")).encode()
    return b"".join([_HEAD.pack(len(head)), head, *blobs])


def decode(content: bytes) -> Any:
    """Return the value that was encoded; raise NotPlain for anything else."""
    try:
        start = _HEAD.size + _HEAD.unpack_from(content)[0]
        form, sizes = json.loads(content[_HEAD.size : start])
        blobs = []
        for size in sizes:
            blobs.append(content[start : start + size])
            start += size
        return _value(form, blobs)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, RuntimeError, struct.error):
        raise NotPlain("another rank sent data that is not a message of echelon") from None


def _form(value: Any, blobs: Blobs, leaves_out: bool) -> object:
    """Return a JSON form: a scalar itself, any other value as a list that begins with its kind."""
    kind = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if kind is int:
        return value if abs(value) < _LARGEST_INT else ["int", hex(value)]

    if kind in _SEQUENCES:
        return [kind.__name__, _forms(value, blobs, leaves_out)]
    if kind is dict:
        return ["dict", _forms(value, blobs, leaves_out), _forms(value.values(), blobs, leaves_out)]
    if kind in (bytes, bytearray):
        return [kind.__name__, _put(bytes(value), blobs)]
    return _form_of_object(value, blobs, leaves_out)


def _form_of_object(value: object, blobs: Blobs, leaves_out: bool) -> Any:
    """Return the form of an object: its kind and its parts."""
    if isinstance(value, torch.Tensor):
        return _tensor_form(value, blobs, leaves_out)
    if isinstance(value, (Exception, ScalingError)):
        return _error_form(value, blobs)
    parts = take_apart(value)
    if parts is not None:
        return ["kind", parts[0], _forms(parts[1:], blobs, leaves_out)]
    named = _named_form(value)
    if named is not None:
        return [*named[:3], _forms(named[3], blobs, leaves_out)]
    return None if leaves_out else _refuse(value)


def _forms(values: Iterable[object], blobs: Blobs, leaves_out: bool) -> list[Any]:
    return [_form(value, blobs, leaves_out) for value in values]


def _named_form(value: object) -> tuple[str, str, str, Any] | None:
    """Return the form of a value that only its class can rebuild: the method, the class by name, and the parts."""
    kind = type(value)
    name = (kind.__module__, kind.__qualname__)
    if isinstance(value, tuple) and (hasattr(kind, "_fields") or hasattr(kind, "n_fields")):
        return ("fields" if hasattr(kind, "_fields") else "sequence", *name, list(value))
    if isinstance(value, dict) and (dataclasses.is_dataclass(kind) or is_ordered(kind)):
        return ("mapping", *name, [list(value), list(value.values())])
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        held = vars(value) if hasattr(value, "__dict__") else {field: getattr(value, field) for field in names}
        return ("dataclass", *name, [held])
    return None


def _error_form(error: BaseException, blobs: Blobs) -> Any:
    """Return the form of an error: its classes, the nearest first, its arguments if they can travel, and its text."""
    kinds = [kind for kind in type(error).__mro__ if issubclass(kind, (Exception, ScalingError))]
    names = [[kind.__module__, kind.__qualname__] for kind in kinds]
    try:
        parts = _form(parts_of_error(error), blobs, leaves_out=False)
    except _CannotTravel:
        parts = None
    return ["error", names, parts, str(error)]


def _tensor_form(tensor: torch.Tensor, blobs: Blobs, leaves_out: bool) -> Any:
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    if not is_plain or tensor.is_quantized:
        return None if leaves_out else _refuse(tensor)
    name, shape = str(tensor.dtype).rpartition(".")[2], list(tensor.shape)
    if tensor.is_meta:
        return ["tensor", name, shape, -1]
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return ["tensor", name, shape, _put(bytes_at(flat.data_ptr(), flat.numel()), blobs)]


def _put(content: bytes, blobs: Blobs) -> int:
    blobs.append(content)
    return len(blobs) - 1


def _value(form: object, blobs: Blobs) -> Any:
    if not isinstance(form, list):
        return form
    build: Callable[[list[Any], Blobs], Any] = _BUILD[form[0]]
    return build(form[1:], blobs)


def _values(forms: list[Any], blobs: Blobs) -> list[Any]:
    return [_value(form, blobs) for form in forms]


def _tensor(form: list[Any], blobs: Blobs) -> torch.Tensor:
    dtype = _dtype(form[0])
    if form[2] < 0:
        return torch.empty(form[1], dtype=dtype, device="meta")
    content = bytearray(blobs[form[2]])
    if not content:
        return torch.empty(form[1], dtype=dtype, device="cpu")
    return torch.frombuffer(content, dtype=torch.uint8).view(dtype).reshape(form[1])


def _imported(module: str, name: str) -> Any:
    entry: Any = sys.modules[module]
    for part in name.split("."):
        entry = getattr(entry, part)
    if not isinstance(entry, type):
        raise TypeError(name)
    return entry


def _fields(form: list[Any], blobs: Blobs) -> Any:
    kind = _imported(*form[:2])
    if not issubclass(kind, tuple):
        raise TypeError(form[1])
    values = _values(form[2], blobs)
    return kind._make(values) if hasattr(kind, "_fields") else kind(values)


def _mapping(form: list[Any], blobs: Blobs) -> object:
    kind: Any = _imported(*form[:2])
    keys, values = _values(form[2], blobs)
    pairs = dict(zip(keys, values, strict=False))
    if issubclass(_class(kind), dict) and dataclasses.is_dataclass(kind):
        return _class(kind)(**pairs)
    if not is_ordered(kind):
        raise TypeError(form[1])
    return kind(pairs)


def _dataclass(form: list[Any], blobs: Blobs) -> object:
    kind: Any = _imported(*form[:2])
    if not dataclasses.is_dataclass(kind):
        raise TypeError(form[1])
    made = object.__new__(_class(kind))
    for name, value in _values(form[2], blobs)[0].items():
        object.__setattr__(made, name, value)  # also where it is frozen
    return made


def _class(kind: object) -> Any:
    return kind


def _error(form: list[Any], blobs: Blobs) -> BaseException:
    """Return the error, or an error of its nearest class that this process has imported."""
    names, parts, text = form[0], _value(form[1], blobs), form[2]
    for place, name in enumerate(names):
        try:
            kind = ScalingError if name == _REFUSAL else _imported(*name)
            if issubclass(kind, (Exception, ScalingError)):
                return error_of(kind, *(parts if parts and not place else ((text,), {})))
        except (KeyError, AttributeError, TypeError, ValueError):
            continue  # not imported here, or made of other arguments
    return RuntimeError(text)


def _refuse(value: object) -> Any:
    raise _CannotTravel(value)


def _refusal(value: object) -> ScalingError:
    kind = type(value)
    return ScalingError(
        f"a {kind.__module__}.{kind.__qualname__} cannot travel from one rank to another",
        "send numbers, text, tuples, lists, dicts or tensors",
    )


def _building(build: Callable[[list[Any]], object]) -> Callable[[list[Any], Blobs], Any]:
    return lambda form, blobs: build(_values(form[0], blobs))


_SEQUENCES: dict[Any, Callable[[list[Any]], Any]] = {
    tuple: tuple, list: list, set: set, frozenset: frozenset, torch.Size: torch.Size,
}  # fmt: skip
_BUILD: dict[str, Callable[[list[Any], Blobs], Any]] = {
    **{kind.__name__: _building(build) for kind, build in _SEQUENCES.items()},
    "int": lambda form, _: int(form[0], 16),
    "dict": lambda form, blobs: dict(zip(_values(form[0], blobs), _values(form[1], blobs), strict=False)),
    "bytes": lambda form, blobs: blobs[form[0]],
    "bytearray": lambda form, blobs: bytearray(blobs[form[0]]),
    "tensor": _tensor,
    "kind": lambda form, blobs: build(form[0], _values(form[1], blobs)),
    "fields": _fields,
    "sequence": _fields,
    "mapping": _mapping,
    "dataclass": _dataclass,
    "error": _error,
}
