"""The losses of torch.nn.functional over a batch that ranks share: a mean is over the whole batch.

Each rank computes the loss of each of its samples. The divisor is counted over all ranks: the samples, the targets that
are not ignored, or the weights of the targets' classes.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import cache, partial, wraps
from typing import Any, NamedTuple

import torch
from torch import nn

from .. import patches
from ..exact import tree
from ..function_types import Args, Function, Kwargs
from ..scaling_error import ScalingError
from ..wire import exchange, world
from . import ignore_index
from .model_calls import Owner
from .tensors import Doubt, Partial, Sharded, entered, own_part

_CLASSES = ("cross_entropy", "nll_loss")
_ELEMENTS = (
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "kl_div", "gaussian_nll_loss", "poisson_nll_loss", "soft_margin_loss", "hinge_embedding_loss",
)  # fmt: skip
_SAMPLES = (
    "triplet_margin_loss", "cosine_embedding_loss", "margin_ranking_loss", "multi_margin_loss",
    "multilabel_margin_loss", "multilabel_soft_margin_loss",
)  # fmt: skip
NAMES = (*_CLASSES, *_ELEMENTS, *_SAMPLES)
_CONSTANTS = ("weight", "pos_weight")
"""Arguments that hold a value for each class, not for each sample; binary_cross_entropy's weight may do either."""


def rule(func: Function, args: Args, kwargs: Kwargs) -> object:
    """Return the loss as a part of a total; None where it needs the whole batch."""
    prepared = _prepare(func, args, kwargs)
    if prepared is None:
        return None
    count = _count_of(prepared)
    if count is None:
        return _compute(func, prepared, None)
    if _leaves_out_negative(prepared):
        doubt = ignore_index.assume(prepared.target, _num_targets(prepared), count)
        if doubt is not None:
            return _compute(func, prepared, None, doubt)
    return _compute(func, prepared, exchange.start_total(count, prepared.lead.world))


def rule_of_pieces(func: Function, every: Sequence[tuple[Args, Kwargs]]) -> list[object] | None:
    """Return the loss of each virtual shard, divided by the count of all shards of all processes."""
    prepared = [loss for args, kwargs in every if (loss := _prepare(func, args, kwargs)) is not None]
    if len(prepared) < len(every):
        return None
    counts = [count for one in prepared if (count := _count_of(one)) is not None]
    waits = None
    if counts:
        total = tree.total([[one] for one in counts], prepared[0].lead.world)[0]
        waits = partial(_given, total)
    return [_compute(func, one, waits) for one in prepared]


def _given(total: torch.Tensor) -> torch.Tensor:
    return total


class _Prepared(NamedTuple):
    """The arguments of a loss for the rows of one rank."""

    lead: Sharded
    reduction: str
    local: Kwargs
    target: Any
    """The target that the script passed."""
    has_classes: bool


def _prepare(func: Function, args: Args, kwargs: Kwargs) -> _Prepared | None:
    name = func.__name__
    values = _signature(func).bind(*args, **kwargs)
    values.apply_defaults()
    arguments = values.arguments
    lead = _leader(arguments, are_equal=name in _ELEMENTS)
    if lead is None or arguments.get("size_average") is not None or arguments.get("reduce") is not None:
        return None
    reduction = arguments["reduction"]
    arguments["reduction"] = "none"
    weighs = name in _ELEMENTS
    local = {key: _local(key, value, lead, may_weigh_samples=weighs) for key, value in arguments.items()}
    return _Prepared(lead, reduction, local, arguments.get("target"), has_classes=name in _CLASSES)


def _compute(
    func: Function, prepared: _Prepared, waits: Callable[[], torch.Tensor] | None, doubt: Doubt | None = None
) -> Any:
    lead, reduction = prepared.lead, prepared.reduction
    losses: torch.Tensor = func(**prepared.local)
    if reduction == "none":
        return Sharded(losses, lead.world, lead.rows)
    rows = lead.rows[lead.world.rank]
    part = losses[:rows].sum()
    num_samples = sum(lead.rows)
    if reduction == "batchmean":
        part = part / num_samples
    elif reduction == "mean":
        part = part / (waits().to(part.dtype) if waits is not None else losses.numel() // losses.size(0) * num_samples)
    return Partial(part, lead.world, rows / num_samples, doubt)


def install(run: Owner) -> None:
    """Hook the mean losses over classes, so that a model's own loss too is the mean of the whole batch."""
    for name in _CLASSES:
        original = getattr(nn.functional, name)
        if getattr(original, "is_of_whole_batch", False):
            continue
        inner: Any = partial(_inside, original, run)
        inner.is_of_whole_batch = True
        why = "The mean of a loss that a model computes is that of the whole batch."
        patches.replace(nn.functional, name, wraps(original)(inner), why=why)


def _inside(original: Function, run: Owner, *args: object, **kwargs: object) -> Any:
    """Return a loss whose mean over ranks, weighted by samples, is the mean over all targets that count."""
    calls = run.calls
    if not calls.is_inside or run.world.size == 1 or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return original(*args, **kwargs)
    values = _signature(original).bind(*args, **kwargs)
    values.apply_defaults()
    arguments = values.arguments
    if arguments["reduction"] != "mean" or arguments["size_average"] is not None or arguments["reduce"] is not None:
        return original(*args, **kwargs)
    if world.is_alone():  # the trial of a model: the true divisor, which all ranks count, is not of these rows
        arguments["reduction"] = "sum"
        return original(**arguments) / max(1, arguments["target"].numel())
    count = (
        count_of_targets(arguments["target"], arguments["weight"], arguments["ignore_index"], arguments["input"])
        * calls.has_rows
    )
    if run.world.is_exact:
        _refuse_uneven_counts(arguments, count, calls.has_rows)
        return original(*args, **kwargs)
    total = exchange.start_total(count, run.world)
    arguments["reduction"] = "sum"
    loss = original(**arguments)
    return loss / (total().to(loss.dtype) * calls.fraction) if calls.has_rows else loss * 0


def _refuse_uneven_counts(arguments: Kwargs, count: torch.Tensor, has_rows: bool) -> None:
    """Refuse a mean inside of a model that leaves targets out or weighs them: other shards are not known yet."""
    target = arguments["target"]
    num_targets = target.numel() // (arguments["input"].size(1) if target.is_floating_point() else 1)
    if arguments["weight"] is not None or (has_rows and float(count) != num_targets):
        raise ScalingError(
            "with --exact the model computes a loss for each shard, and the mean in this loss leaves targets out",
            "let the model return logits, and compute the loss outside the model",
        )


@cache
def _signature(func: Callable[..., object]) -> inspect.Signature:
    return inspect.signature(func)


def _leader(arguments: dict[str, Any], *, are_equal: bool) -> Sharded | None:
    """Return the sharded argument whose rows all arguments have; None where the rows do not line up."""
    tensors = {key: value for key, value in arguments.items() if isinstance(value, torch.Tensor)}
    lead = next((value for value in tensors.values() if isinstance(value, Sharded)), None)
    if lead is None or lead.size(0) == 1:
        return None
    for key, value in tensors.items():
        if isinstance(value, Sharded):
            if value.rows != lead.rows or value.dim_of_rows or (are_equal and value.dim() != lead.dim()):
                return None
        elif (key not in _CONSTANTS and (not value.dim() or value.size(0) != lead.size(0))) or (
            are_equal and key not in _CONSTANTS and value.dim() != lead.dim()
        ):
            return None
    return lead


def _local(key: str, value: object, lead: Sharded, *, may_weigh_samples: bool) -> Any:
    if isinstance(value, Sharded):
        return value.local
    if isinstance(value, torch.Tensor):
        value = entered(value, lead.world)
    if not isinstance(value, torch.Tensor):
        return value
    if key in _CONSTANTS and (not may_weigh_samples or value.dim() != lead.dim() or value.size(0) != lead.size(0)):
        return value
    return own_part(value, lead.world.rank, lead.rows)


def _count_of(prepared: _Prepared) -> torch.Tensor | None:
    """Return this rank's part of the divisor of a mean over classes; None where the divisor counts all samples."""
    lead, local = prepared.lead, prepared.local
    if prepared.reduction != "mean" or not prepared.has_classes:
        return None
    target = local["target"][: lead.rows[lead.world.rank]]
    if target.is_floating_point():
        return None
    if _leaves_out_negative(prepared) and ignore_index.are_natural(prepared.target):
        return None
    return count_of_targets(target, local["weight"], local["ignore_index"], local["input"])


def _leaves_out_negative(prepared: _Prepared) -> bool:
    """Say whether a loss ignores negative targets alone, and the targets are a global tensor."""
    is_plain_mean = prepared.local["weight"] is None and prepared.local["ignore_index"] < 0
    return is_plain_mean and isinstance(prepared.target, Sharded)


def _num_targets(prepared: _Prepared) -> int:
    """Return the number of targets of all ranks, whether or not they count."""
    target = prepared.local["target"]
    return int(target.numel() // max(1, target.size(0)) * sum(prepared.lead.rows))


def count_of_targets(
    target: torch.Tensor, weight: torch.Tensor | None, ignored: int, scores: torch.Tensor
) -> torch.Tensor:
    """Return the divisor of a mean: the number of targets that count, or the sum of their classes' weights."""
    if target.is_floating_point():  # a probability for each class
        num_classes = scores.size(-1 if scores.dim() == 1 else 1)
        return torch.tensor(target.numel() / num_classes, device=target.device)
    counts = target != ignored
    if weight is None:
        return counts.sum().double()
    weights = (weight[target.clamp(min=0)] * counts).sum()
    return weights.float() if weights.dtype in (torch.half, torch.bfloat16) else weights
