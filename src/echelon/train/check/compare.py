"""Compare a step's gradients and buffers with those of one device, within bounds."""

import math
import os
import weakref
from typing import Dict, Iterable, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import nn

from .. import fsdp, modules
from ..scaling_error import ScalingError
from .distances import distance, doubles, multiple
from .factors import meaning

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 5e-2}
MOST = 1e-2  # of a gradient: BatchNorm with a rank's own statistics makes more
SHARE = 0.25  # of what one sample counts: one that is missing, or counts twice, makes a difference of four times that
NUM_ROUNDINGS = 64
"""Of the whole model's gradient: what cancels, such as that of a bias before BatchNorm, is left of these."""
NEGLIGIBLE = 1e-7  # a norm that is rounding, whatever it is a part of
LATER = 10.0
"""How much more may differ where other optimizers have stepped before: Adam makes steps of what is rounding."""


class Bound(NamedTuple):
    """How much a gradient may differ from that of one device."""

    relative: float
    """Of its own norm."""
    absolute: float
    """Of what is rounding in the gradient of the whole model."""
    norm: float
    """Of the gradient of the whole model."""


def norm_of(gradients: Iterable[Optional[torch.Tensor]]) -> float:
    """Return the norm of a whole model's gradient."""
    return math.sqrt(sum(float(doubles(gradient).norm()) ** 2 for gradient in gradients if gradient is not None))


def bound_of(dtype: torch.dtype, num_samples: int, norm: float, *, is_half: bool, slack: float = 1.0) -> Bound:
    """Return the bound for a gradient: well below what a single sample counts, and above what rounding makes.

    Where a gradient is a small difference of large numbers, as of a discriminator that cannot tell yet, rounding is a
    larger part of it; then only what a mistake makes at the least can tell the two apart.
    """
    relative = TOLERANCE[torch.bfloat16] if is_half else TOLERANCE.get(dtype, 1e-3)
    smallest = min(MOST, SHARE / num_samples) if num_samples and dtype == torch.float32 else 0.0
    relative = max(relative * slack, smallest)
    epsilon = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
    return Bound(relative, min(NUM_ROUNDINGS * epsilon, relative / 100) * norm, norm)


def difference(
    parameter: nn.Parameter, ours: Optional[torch.Tensor], theirs: Optional[torch.Tensor], bound: Bound
) -> float:
    """Return the relative difference of a gradient; raise ScalingError where it is more than rounding."""
    if ours is None or theirs is None:
        if (ours is None) != (theirs is None) and not _is_zero(ours) and not _is_zero(theirs):
            raise _wrong(parameter, "%s no gradient" % ("the ranks have" if ours is None else "the whole batch gives"))
        return 0.0
    ours, theirs = doubles(ours.cpu()), doubles(theirs)  # some devices have no float64
    scale, absolute = float(theirs.norm()), distance(ours, theirs)
    relative = absolute / scale if scale else float(absolute > 0.0)
    if relative <= bound.relative:
        return relative
    if absolute < max(NEGLIGIBLE, bound.absolute):
        return absolute / bound.norm if bound.norm else 0.0
    factor = multiple(ours, theirs, tolerance=1e-2)
    if factor:
        raise _wrong(parameter, "it is %.4g times as large" % factor, factor)
    raise _wrong(parameter, "it differs by %.2g" % relative)


Buffers = Dict[str, Tuple[str, torch.Tensor]]


class Known:
    """The modules that there were when the oracle was forked: in both processes each of them has the same id."""

    def __init__(self, living: Iterable[nn.Module] = ()) -> None:
        self._modules = {id(module): weakref.ref(module) for module in living}

    def __contains__(self, module: nn.Module) -> bool:
        known = self._modules.get(id(module))
        return known is not None and known() is module


def buffers(parameters: Sequence[nn.Parameter], known: Known) -> Buffers:
    """Return the buffers of models by what is the same in a child that was forked, with their names.

    A module that was made since then is known by its place in a model with trained weights. BatchNorm has options of
    its own, and what has no parameters is computed with the whole batch.
    """
    living = modules.living()
    places = {id(module): "known %d" % id(module) for module in living if module in known}
    for number, root in enumerate(fsdp.roots_of(parameters)):
        for path, module in root.named_modules():
            places.setdefault(id(module), "model %d %s" % (number, path))
    return {
        "%s.%s" % (places[id(module)], name): ("%s.%s" % (type(module).__name__, name), buffer)
        for module in living
        if id(module) in places and not isinstance(module, nn.modules.batchnorm._NormBase)
        for name, buffer in module.named_buffers(recurse=False)
        if type(buffer) is torch.Tensor and buffer.layout == torch.strided and not buffer.is_meta
    }


def compare_buffers(ours: Buffers, theirs: Dict[str, torch.Tensor], *, is_half: bool) -> None:
    """Refuse a model that has changed a buffer otherwise than with the whole batch: later steps depend on it."""
    for key, (name, one) in ours.items():
        other = theirs.get(key)
        if other is None or other.dtype != one.dtype or other.numel() == 0:
            continue
        tolerance = TOLERANCE[torch.bfloat16] if is_half else TOLERANCE.get(one.dtype, 1e-3)
        is_same = other.shape == one.shape
        if is_same:
            mine, whole = (doubles(buffer.cpu()).nan_to_num() for buffer in (one, other))
            is_same = distance(mine, whole) <= max(tolerance * float(whole.norm()), NEGLIGIBLE)
        if not is_same:
            raise ScalingError(
                "the first step differs from one device: the model changes its buffer %s with the samples that "
                "it gets, and each rank gets different samples" % name,
                "change the buffer outside the model, where the batch is whole, or start one rank: echelon run -n 1 …",
            )


def _wrong(parameter: nn.Parameter, how: str, factor: float = 0.0) -> ScalingError:
    cause = meaning(factor, int(os.environ.get("WORLD_SIZE", "1")))
    return ScalingError(
        "the first step differs from one device: the gradient of %s is not the gradient of the whole batch: "
        "%s; %s" % (_name(parameter), how, cause),
        "let the loss be the mean over the batch that the loader gives, or start one rank: echelon run -n 1 …",
        factor=factor,
    )


def _name(parameter: nn.Parameter) -> str:
    """Return a parameter's name in the outermost module: the longest of its names."""
    names = [
        "%s.%s" % (type(module).__name__, name)
        for module in modules.living()
        if not isinstance(module, nn.ParameterList)
        for name, one in module.named_parameters()
        if one is parameter and "parameters_of_optimizers" not in name  # not our own wrapper
    ]
    return max(names, key=lambda name: name.count("."), default="a parameter of shape %s" % (tuple(parameter.shape),))


def _is_zero(gradient: Optional[torch.Tensor]) -> bool:
    return gradient is None or not bool(gradient.any())
