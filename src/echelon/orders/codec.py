"""The one form in which orders travel to ranks: a named tuple as a JSON object, in the variable of its kind."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args, get_type_hints

from ..errors import UsageError

Order = TypeVar("Order", bound="tuple[Any, ...]")


def write(order: Any) -> str:
    """Return an order as JSON; an order inside of it is an object too.

    >>> from echelon.orders.rehearsal import VARIABLE, Fault, Rehearsal, read
    >>> read({VARIABLE: write(Rehearsal(Fault("kill-rank", rank=1, step=7)))}).fault
    Fault(kind='kill-rank', rank=1, step=7, delay=0.0)
    """
    fields = {name: value._asdict() if hasattr(value, "_asdict") else value for name, value in order._asdict().items()}
    return json.dumps(fields)


def reader(variable: str, kind: type[Order]) -> Callable[[Mapping[str, str]], Order | None]:
    """Return what reads the orders of a kind from the variables of a rank; it returns None where none is given."""

    def read(environ: Mapping[str, str]) -> Order | None:
        text = environ.get(variable, "")
        return decode(text, variable, kind) if text else None

    return read


def decode(text: str, variable: str, kind: type[Order]) -> Order:
    """Return an order from JSON; raise UsageError for an unknown name or a value of another type."""
    try:
        values = json.loads(text)
    except ValueError as error:
        raise _refusal(variable, f"{text!r} is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise _refusal(variable, f"{text!r} is no JSON object")
    hints, defaults = get_type_hints(kind), kind._field_defaults  # type: ignore[attr-defined]
    for name, value in values.items():
        if name not in hints:
            raise _refusal(variable, f"there is no option {name!r}; the options are {', '.join(hints)}")
        try:
            values[name] = restored = _restored(value, hints[name])
        except TypeError as error:  # of an order inside of this one
            raise _refusal(variable, f"{name} is {value!r}: {error}") from error
        default = defaults.get(name)
        expected = type(default)
        if default is not None and type(restored) is not expected and not (expected is float and type(value) is int):
            raise _refusal(variable, f"{name} is {value!r}, which is not of type {expected.__name__}")
    missing = [name for name in hints if name not in values and name not in defaults]
    if missing:
        raise _refusal(variable, f"{', '.join(missing)} is not given")
    return kind(**values)


def _restored(value: Any, hint: Any) -> Any:
    inner = next((each for each in get_args(hint) if hasattr(each, "_fields")), None)
    if inner is not None and isinstance(value, dict):
        return inner(**value)
    return tuple(_restored(part, hint) for part in value) if isinstance(value, list) else value


def _refusal(variable: str, problem: str) -> UsageError:
    return UsageError(f"{variable}: {problem}", hint=f"unset {variable}; echelon run sets it for each rank")
