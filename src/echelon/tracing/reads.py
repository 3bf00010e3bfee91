"""What a script reads from a tensor without data: a value is assumed, and the line of the script is noted."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..pytorch import internals
from ..train import patches

FakeTensor: Any = internals.fake_tensors().FakeTensor

FLOAT, WHOLE, TRUTH = 1.0, 1, False
_WHY = "A tensor without data has no values."
_SURE = ("isfinite", "allclose", "equal", "isclose")
_UNSURE = ("all", "any", "logical_and", "logical_or")


class Reads:
    """Gives values to a script, and keeps the lines in which it read one."""

    def __init__(self, assumed: Mapping[str, float], script: str) -> None:
        self.lines: dict[str, str] = {}
        """For each line of the script that read a value, what was assumed."""
        self._assumed = assumed
        self._script = script

    def install(self) -> None:
        """Let tensors without data be read."""
        for name in ("item", "__float__", "__int__", "__index__", "__bool__", "__complex__", "tolist", "numpy",
                     "__array__", "__format__", "__contains__"):  # fmt: skip
            original = getattr(torch.Tensor, name)
            patches.replace(torch.Tensor, name, self._reading(original, _READ[name]), why=_WHY)
        for names, telling in ((_SURE, _sure), (_UNSURE, _as_sure)):
            for owner in (torch, torch.Tensor):
                for name in names:
                    if callable(getattr(owner, name, None)):
                        patches.replace(owner, name, telling(getattr(owner, name)), why=_WHY)
        patches.replace(torch.Tensor, "bool", _as_sure(torch.Tensor.bool), why=_WHY)

    def notes(self) -> list[str]:
        """Return a sentence for each line at which a whole number or a truth was assumed: a shape may depend on it."""
        return [
            f"{line} reads a tensor's value, and {value} was assumed"
            for line, value in self.lines.items()
            if value != repr(FLOAT)
        ]

    def _reading(self, original: Callable[..., Any], read: Callable[..., Any]) -> Callable[..., Any]:
        def reads(tensor: torch.Tensor, *args: object, **kwargs: object) -> Any:
            if not isinstance(tensor, FakeTensor):
                return original(tensor, *args, **kwargs)
            constant = tensor.constant
            if constant is not None:
                return original(constant, *args, **kwargs)
            return read(tensor, self._value(tensor), *args)

        return reads

    def _value(self, tensor: torch.Tensor) -> Any:
        """Return the assumed value of a tensor's elements."""
        line = self._line()
        usual: Any = FLOAT if tensor.dtype.is_floating_point or tensor.dtype.is_complex else WHOLE
        usual = getattr(tensor, "echelon_truth", TRUTH) if tensor.dtype == torch.bool else usual
        value = self._assumed.get(line, usual)
        if line:
            self.lines[line] = repr(value)
        return value

    def _line(self) -> str:
        """Return the innermost line of the script, as FILE:NUMBER."""
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == self._script:
                return f"{self._script.rpartition('/')[2]}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return ""


def _array(tensor: torch.Tensor, value: object) -> Any:
    kind = torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype
    return np.full(tuple(tensor.shape), value, dtype=str(kind).rpartition(".")[2])


def _list(tensor: torch.Tensor, value: object) -> Any:
    return value if tensor.dim() == 0 else _array(tensor, value).tolist()


_READ: dict[str, Callable[..., Any]] = {
    "item": lambda _, value: value,
    "__float__": lambda _, value: float(value),
    "__int__": lambda _, value: int(value),
    "__index__": lambda _, value: int(value),
    "__bool__": lambda _, value: bool(value),
    "__complex__": lambda _, value: complex(value),
    "tolist": _list,
    "numpy": _array,
    "__array__": lambda tensor, value, *_: _array(tensor, value),
    "__format__": lambda tensor, value, spec="": format(value, spec) if tensor.dim() == 0 else repr(tensor),
    "__contains__": lambda *_: False,
}


def _sure(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose result is true: a training that goes well is assumed."""

    def asks(*args: object, **kwargs: object) -> Any:
        return _tell(original(*args, **kwargs), is_true=True)

    return asks


def _as_sure(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose result is as true as the tensors that it gets."""

    def asks(*args: object, **kwargs: object) -> Any:
        tensors: list[Any] = [value for value in args if isinstance(value, FakeTensor)]
        is_true = bool(tensors) and all(getattr(value, "echelon_truth", TRUTH) for value in tensors)
        return _tell(original(*args, **kwargs), is_true=is_true)

    return asks


def _tell(result: object, *, is_true: bool) -> Any:
    if isinstance(result, FakeTensor) and result.dtype == torch.bool:
        result.echelon_truth = is_true
    return result
