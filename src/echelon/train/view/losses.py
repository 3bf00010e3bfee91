"""The losses of torch.nn.functional over a batch that ranks share: the mean is over all of it.

Each rank computes the losses of its samples one by one; what they are divided by is counted over all ranks: the
samples, the targets that are not ignored, or the weights of their classes.
"""

import inspect
from functools import lru_cache
from typing import Any, Dict, Optional, Tuple

import torch

from . import exchange
from .tensors import Partial, Sharded, entered, own_part

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
"""What holds a value for each class, and not for each sample; binary_cross_entropy's weight may do either."""


def rule(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """Return the loss as a part of a total; None where only the whole will do."""
    name = func.__name__
    values = _signature(func).bind(*args, **kwargs)
    values.apply_defaults()
    given = values.arguments
    lead = _leader(given, are_equal=name in _ELEMENTS)
    if lead is None or given.get("size_average") is not None or given.get("reduce") is not None:
        return None
    reduction = given["reduction"]
    given["reduction"] = "none"
    local = {key: _local(key, value, lead) for key, value in given.items()}
    waits = _start_count(local, lead) if reduction == "mean" and name in _CLASSES else None
    losses: torch.Tensor = func(**local)
    if reduction == "none":
        return Sharded(losses, lead.world, lead.rows)
    rows = lead.rows[lead.world.rank]
    part = losses[:rows].sum()
    num_samples = sum(lead.rows)
    if reduction == "batchmean":
        part = part / num_samples
    elif reduction == "mean":
        part = part / (waits().to(part.dtype) if waits is not None else losses.numel() // losses.size(0) * num_samples)
    return Partial(part, lead.world, rows / num_samples)


@lru_cache(maxsize=None)
def _signature(func: Any) -> inspect.Signature:
    return inspect.signature(func)


def _leader(given: Dict[str, Any], *, are_equal: bool) -> Optional[Sharded]:
    """Return the rows that all arguments share, which is None where they do not line up."""
    tensors = {key: value for key, value in given.items() if isinstance(value, torch.Tensor)}
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


def _local(key: str, value: Any, lead: Sharded) -> Any:
    if isinstance(value, Sharded):
        return value.local
    if isinstance(value, torch.Tensor):
        value = entered(value, lead.world)
    if not isinstance(value, torch.Tensor) or (key in _CONSTANTS and value.dim() != lead.dim()):
        return value
    if key in _CONSTANTS and value.size(0) != lead.size(0):
        return value
    return own_part(value, lead.world.rank, lead.rows)


def _start_count(local: Dict[str, Any], lead: Sharded) -> Any:
    """Begin to count over all ranks what a mean over classes is divided by."""
    target, weight = local["target"][: lead.rows[lead.world.rank]], local["weight"]
    if target.is_floating_point():  # a probability for each class
        count = torch.tensor(float(target.numel() // max(target.size(1), 1)), device=target.device)
        return exchange.start_total(count)
    counts = target != local["ignore_index"]
    if weight is None:
        return exchange.start_total(counts.sum().double())
    weights = weight[target.clamp(min=0)] * counts
    return exchange.start_total(
        weights.sum().float() if weights.dtype in (torch.half, torch.bfloat16) else weights.sum()
    )
