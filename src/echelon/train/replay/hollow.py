"""Tensors without values: while a loop is repeated, they take the place of what the script computes.

An operation on a hollow tensor computes only the shape of its result, on PyTorch's meta device, and the result is
hollow too. A value that the script reads comes from the journal (reads.py). When the script continues, a hollow tensor
that it still holds gets its value from the checkpoint; from then on every operation on it is computed.
"""

from typing import Any

import torch

from ...pytorch import internals
from ..scaling_error import ScalingError

_READ = internals.read_of_number()


class ShapeOnlyTensor(torch.Tensor):
    """A tensor with a shape, a type and a device, and perhaps without a value."""

    form: torch.Tensor
    """A tensor of the meta device with its shape, strides and type."""
    value: torch.Tensor | None

    @staticmethod
    def __new__(cls: object, form: torch.Tensor, device: object) -> "ShapeOnlyTensor":
        """Make a hollow tensor of the shape and type of `form`, which is on the meta device."""
        made: ShapeOnlyTensor = internals.wrapper_of(
            cls, form.size(), strides=form.stride(), storage_offset=form.storage_offset(), dtype=form.dtype,
            layout=form.layout, device=device, requires_grad=False,
        )  # fmt: skip
        made.form = form
        made.value = None
        return made

    def __init__(self, form: torch.Tensor, device: Any) -> None: ...

    __torch_function__ = internals.no_torch_function

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        hollows = [one for one in _flat(args, kwargs) if isinstance(one, ShapeOnlyTensor)]
        if all(one.value is not None for one in hollows):
            return func(*internals.tree_map(_value, args), **internals.tree_map(_value, kwargs))
        if func is _READ:
            raise missing(next(one for one in hollows if one.value is None))
        return _of_shapes(func, args, kwargs, hollows)

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        if self.value is not None:
            return repr(self.value)
        return f"Hollow({tuple(self.shape)}, {self.dtype}, {self.device})"


def hollow(tensor: torch.Tensor) -> ShapeOnlyTensor:
    return ShapeOnlyTensor(_form(tensor), tensor.device)


def is_hollow(tensor: object) -> bool:
    return isinstance(tensor, ShapeOnlyTensor) and tensor.value is None


def of_shape(shape: tuple[int, ...], dtype: torch.dtype, device: object) -> ShapeOnlyTensor:
    return ShapeOnlyTensor(torch.empty(shape, dtype=dtype, device="meta"), device)


def missing(tensor: torch.Tensor) -> ScalingError:
    """Return the error for a value that neither the journal nor the checkpoint has."""
    return ScalingError(
        f"the script reads a tensor of shape {tuple(tensor.shape)} that was computed before the checkpoint, and the "
        "checkpoint does not have its value",
        "start the script without --resume; or read the value (item(), tolist()) in the step that computes it",
    )


def _of_shapes(func: Any, args: object, kwargs: dict[str, Any], hollows: list[ShapeOnlyTensor]) -> Any:
    owners: dict[int, Any] = {}

    def form(value: object) -> Any:
        if not isinstance(value, torch.Tensor):
            return torch.device("meta") if isinstance(value, torch.device) else value
        made = _form(value)
        owners[id(made)] = value
        return made

    device = kwargs.get("device") or hollows[0].device
    shapes, options = internals.tree_map(form, args), internals.tree_map(form, kwargs)
    try:
        results = func(*shapes, **options)
    except (NotImplementedError, RuntimeError) as error:
        raise ScalingError(
            "{} needs the values of its tensors, and they are not computed while the loop is repeated: {}".format(
                func, str(error).partition("\n")[0]
            ),
            "start the script without --resume",
        ) from error

    def wrap(result: object) -> Any:
        if not isinstance(result, torch.Tensor):
            return result
        return owners[id(result)] if id(result) in owners else ShapeOnlyTensor(result, device)

    return internals.tree_map(wrap, results)


def _form(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, ShapeOnlyTensor):
        return tensor.form
    if tensor.layout != torch.strided:
        return tensor.detach().to("meta")
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def _value(value: object) -> Any:
    return value.value if isinstance(value, ShapeOnlyTensor) else value


def _flat(args: object, kwargs: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    internals.tree_map(found.append, (args, kwargs))
    return found
