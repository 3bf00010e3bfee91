"""The kinds of values besides plain data that can travel between ranks: how each is taken apart and rebuilt."""

import collections
import copyreg
import ctypes
import datetime
import decimal
import fractions
import pathlib
import subprocess
import sys
import uuid
from http.client import HTTPMessage
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch


class Row(NamedTuple):
    """A kind of value; take_apart() handles kinds that name no class here."""

    kind: Any
    parts: Any
    build: Callable[..., Any]


def bytes_at(address: int, size: int) -> bytes:
    """Return a copy of a piece of memory."""
    return ctypes.string_at(address, size)


def take_apart(value: Any) -> Optional[Tuple[Any, ...]]:
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


def build(name: str, parts: List[Any]) -> Any:
    """Return the value of a kind that has these parts."""
    return _ROWS[name].build(*parts)


def is_ordered(kind: Any) -> bool:
    """Say whether a class is a dictionary of the standard library that is built from its entries."""
    return kind in (collections.OrderedDict, collections.Counter)


def parts_of_error(error: BaseException) -> Optional[List[Any]]:
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


def error_of(kind: Any, arguments: Tuple[Any, ...], state: Dict[str, Any]) -> BaseException:
    """Return a rebuilt error."""
    error: BaseException = kind(*arguments)
    for name, value in state.items():
        setattr(error, name, value)
    return error


def _array(dtype: str, shape: Tuple[int, ...], content: bytes, is_scalar: bool) -> Any:
    import numpy

    array = numpy.frombuffer(content, dtype=numpy.dtype(dtype)).reshape(shape)
    return array[()] if is_scalar else array.copy()


def _headers(items: List[Tuple[str, str]]) -> Any:
    made = HTTPMessage()
    for name, value in items:
        made[name] = value
    return made


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(name)
    return dtype


_ROWS: Dict[str, Row] = {
    "complex": Row(complex, lambda one: (one.real, one.imag), complex),
    "slice": Row(slice, lambda one: (one.start, one.stop, one.step), slice),
    "range": Row(range, lambda one: (one.start, one.stop, one.step), range),
    "dtype": Row(torch.dtype, lambda one: (str(one).rpartition(".")[2],), _dtype),
    "device": Row(torch.device, lambda one: (str(one),), torch.device),
    "date": Row(datetime.date, lambda one: (one.isoformat(),), datetime.date.fromisoformat),
    "datetime": Row(datetime.datetime, lambda one: (one.isoformat(),), datetime.datetime.fromisoformat),
    "timedelta": Row(datetime.timedelta, lambda one: (one.days, one.seconds, one.microseconds), datetime.timedelta),
    "decimal": Row(decimal.Decimal, lambda one: (str(one),), decimal.Decimal),
    "fraction": Row(fractions.Fraction, lambda one: (one.numerator, one.denominator), fractions.Fraction),
    "uuid": Row(uuid.UUID, lambda one: (str(one),), uuid.UUID),
    "finished": Row(
        subprocess.CompletedProcess,
        lambda one: (one.args, one.returncode, one.stdout, one.stderr),
        subprocess.CompletedProcess,
    ),
    "path": Row(None, None, pathlib.Path),
    "headers": Row(None, None, _headers),
    "numpy": Row(None, None, _array),
}
_NAMES = {row.kind: name for name, row in _ROWS.items() if row.kind is not None}
