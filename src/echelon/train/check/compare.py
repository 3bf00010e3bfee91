"""Compare a step's gradients and buffers with those of one device, within bounds."""

import math
import os
import weakref
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from ...pytorch import internals
from .. import fsdp, modules
from ..scaling_error import ScalingError
from .closeness import NEGLIGIBLE, OF_STEPS, distance, doubles, is_equal, multiple, share_of
from .factors import meaning

MOST = 1e-2  # of a gradient's norm: BatchNorm with a rank's own statistics makes a larger difference
SHARE = 0.25  # of one sample's share of a gradient: a missing or doubled sample makes four times this difference
NUM_ROUNDINGS = 64
"""The roundings of the whole model's gradient that may remain in a gradient that cancels (a bias before BatchNorm)."""
LATER = 10.0
"""The factor of the bounds after another optimizer has stepped: Adam turns rounding into whole steps."""


class Tolerance(NamedTuple):
    """How much a gradient may differ from that of one device."""

    relative: float
    """The bound relative to the gradient's own norm."""
    absolute: float
    """The bound for the rounding of the whole model's gradient."""
    norm: float
    """The norm of the whole model's gradient."""


def norm_of(gradients: Iterable[torch.Tensor | None]) -> float:
    """Return the norm of a whole model's gradient."""
    return math.sqrt(sum(float(_finite(gradient).norm()) ** 2 for gradient in gradients if gradient is not None))


def bound_of(dtype: torch.dtype, num_samples: int, norm: float, *, is_half: bool, slack: float = 1.0) -> Tolerance:
    """Return the bound for a gradient: far less than one sample's share, and more than rounding.

    A gradient may be a small difference of large numbers, as in a discriminator at its start. Rounding is then a
    larger part of it, and the bound is the least difference that a mistake makes.
    """
    relative = share_of(dtype, OF_STEPS, is_half=is_half)
    smallest = min(MOST, SHARE / num_samples) if num_samples and dtype == torch.float32 else 0.0
    relative = max(relative * slack, smallest)
    epsilon = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
    return Tolerance(relative, min(NUM_ROUNDINGS * epsilon, relative / 100) * norm, norm)


def difference(
    parameter: nn.Parameter, ours: torch.Tensor | None, theirs: torch.Tensor | None, bound: Tolerance
) -> float:
    """Return the relative difference of a gradient; raise ScalingError where it is more than rounding."""
    if ours is None or theirs is None:
        if (ours is None) != (theirs is None) and not _is_zero(ours) and not _is_zero(theirs):
            raise _wrong(parameter, "%s no gradient" % ("the ranks have" if ours is None else "the whole batch gives"))
        return 0.0
    ours = ours.cpu()  # some devices have no float64
    if _is_strided(ours, theirs) and not torch.equal(ours.isfinite(), theirs.isfinite()):
        raise _wrong(parameter, "it has values that are not finite in other places")
    ours, theirs = _finite(ours), _finite(theirs)
    scale, absolute = float(theirs.norm()), distance(ours, theirs)
    relative = absolute / scale if scale else float(absolute > 0.0)
    if relative <= bound.relative:
        return relative
    if absolute < max(NEGLIGIBLE, bound.absolute):
        return absolute / bound.norm if bound.norm else 0.0
    factor = multiple(ours, theirs, tolerance=1e-2)
    if factor:
        raise _wrong(parameter, f"it is {factor:.4g} times as large", factor)
    raise _wrong(parameter, f"it differs by {relative:.2g}")


Buffers = dict[str, tuple[str, torch.Tensor]]


class KnownModules:
    """The modules that existed when the oracle was forked: each module has the same id in both processes."""

    def __init__(self, living: Iterable[nn.Module] = ()) -> None:
        self._modules = {id(module): weakref.ref(module) for module in living}

    def __contains__(self, module: nn.Module) -> bool:
        known = self._modules.get(id(module))
        return known is not None and known() is module


def buffers(parameters: Sequence[nn.Parameter], known: KnownModules) -> Buffers:
    """Return the buffers of models, with their names, under keys that are equal in this process and in the oracle.

    The key of a module that was created after the fork is its place in a model with trained weights. BatchNorm has
    options of its own, and a module without parameters computes with the whole batch.
    """
    living = modules.living()
    places = {id(module): f"known {id(module)}" for module in living if module in known}
    for number, root in enumerate(fsdp.roots_of(parameters)):
        for path, module in root.named_modules():
            places.setdefault(id(module), f"model {number} {path}")
    return {
        f"{places[id(module)]}.{name}": (f"{type(module).__name__}.{name}", buffer)
        for module in living
        if id(module) in places and not isinstance(module, internals.NormLayer)
        for name, buffer in module.named_buffers(recurse=False)
        if type(buffer) is torch.Tensor and buffer.layout == torch.strided and not buffer.is_meta
    }


def compare_buffers(ours: Buffers, theirs: dict[str, torch.Tensor], *, is_half: bool) -> None:
    """Refuse a model whose buffer differs from that of the whole batch, because later steps depend on it."""
    for key, (name, own_buffer) in ours.items():
        whole_buffer = theirs.get(key)
        if whole_buffer is None or whole_buffer.dtype != own_buffer.dtype or whole_buffer.numel() == 0:
            continue
        is_same_shape = whole_buffer.shape == own_buffer.shape
        if not (is_same_shape and is_equal(own_buffer.cpu(), whole_buffer.cpu(), OF_STEPS, is_half=is_half)):
            raise ScalingError(
                f"the first step differs from one device: the model changes its buffer {name} with the samples that "
                "it gets, and each rank gets different samples",
                "change the buffer outside the model, where the batch is whole, or start one rank: echelon run -n 1 …",
            )


def _wrong(parameter: nn.Parameter, how: str, factor: float = 0.0) -> ScalingError:
    cause = meaning(factor, int(os.environ.get("WORLD_SIZE", "1")))
    return ScalingError(
        f"the first step differs from one device: the gradient of {_name(parameter)} is not the gradient of "
        "the whole batch: "
        f"{how}; {cause}",
        "let the loss be the mean over the batch that the loader gives, or start one rank: echelon run -n 1 …",
        factor=factor,
    )


def _name(parameter: nn.Parameter) -> str:
    """Return the longest of a parameter's names, which is its name in the outermost module."""
    names = [
        f"{type(module).__name__}.{name}"
        for module in modules.living()
        if not isinstance(module, nn.ParameterList)
        for name, one in module.named_parameters()
        if one is parameter and modules.OF_OPTIMIZERS not in name  # not our own wrapper
    ]
    return max(names, key=lambda name: name.count("."), default=f"a parameter of shape {tuple(parameter.shape)}")


def name_of_infinite(parameter: nn.Parameter, gradient: torch.Tensor | None) -> str:
    """Return the name of a parameter whose gradient is infinite or not a number somewhere; empty if it is finite."""
    if gradient is None or not _is_strided(gradient) or bool(gradient.isfinite().all()):
        return ""
    return _name(parameter)


def _finite(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient with zeros where it has no number that could be compared."""
    values = doubles(gradient)
    return values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) if _is_strided(values) else values


def _is_strided(*gradients: torch.Tensor) -> bool:
    """Say whether gradients are dense: PyTorch looks for infinite values in no others."""
    return all(gradient.layout == torch.strided for gradient in gradients)


def _is_zero(gradient: torch.Tensor | None) -> bool:
    return gradient is None or not bool(gradient.any())
