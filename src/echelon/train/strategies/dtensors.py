"""Teach PyTorch's DTensors operations of models that they do not support."""

from typing import Any

import torch
from torch import nn

from ...pytorch import distributed, internals
from .. import patches

MEAN, SUM = 1, 2
"""Reductions of losses, as ATen numbers them."""


def allow_plain_tensors() -> None:
    """Let PyTorch treat plain tensors among DTensors as replicated: here they are equal on every rank."""
    why = "A plain tensor among DTensors is the same on every rank."  # as implicit_replication(), for backward too
    patches.replace(distributed.dtensor_dispatcher(), distributed.PLAIN_IS_REPLICATED, True, why=why)
    torch.backends.mha.set_fastpath_enabled(False)  # DTensor does not know this operation for a whole layer


_taught: list[bool] = []


def teach_attention() -> None:
    """Tell DTensor that attention on a CPU computes heads and samples independently, as it knows of CUDA's (2.13)."""
    if _taught:
        return
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    _taught.append(True)
    _gather_projections()
    kinds = [Replicate(), Shard(1), Shard(0)]

    def forward(*args: object, attn_mask: object = None, **_options: object) -> object:
        return [([kind] * 2, [kind] * 3 + [None] * (len(args) - 3) + of_mask(attn_mask, kind)) for kind in kinds]

    def backward(*args: object, attn_mask: object = None, **_options: object) -> Any:
        return [([kind] * 3, [kind] * 6 + [None] * (len(args) - 6) + of_mask(attn_mask, kind)) for kind in kinds]

    def of_mask(mask: Any, kind: Any) -> list[object]:
        """Return the placement of a mask, if there is one: cut like the other tensors, except along dims of size 1."""
        if mask is None or not distributed.places_keywords():  # PyTorch 2.6 to 2.9 leave it as it is
            return []
        is_cut = kind.is_shard() and len(mask.shape) == 4 and mask.shape[kind.dim] > 1
        return [kind if is_cut else Replicate()]

    operation, gradient = internals.attention_on_cpu()
    register_sharding(operation)(forward)
    register_sharding(gradient)(backward)


def teach_losses() -> None:
    """Tell DTensor that the mean over targets is not the mean of the ranks' means (2.13).

    A rank may have more targets than another rank, as with labels that are shifted. DTensor's gradients are right.
    """
    handlers = distributed.dtensor_handlers()

    def forward(operation: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        scores, target, weight, reduction, ignored = args
        leave()  # as PyTorch does it
        try:
            if reduction != MEAN:
                return operation(*args, **kwargs)
            total, weights = operation(scores, target, weight, SUM, ignored)
            return total / weights, weights
        finally:
            enter()

    leave, enter = patches.replace(
        handlers, torch.ops.aten.nll_loss_forward.default, forward,
        name="the way of DTensor to compute nll_loss",
        why="The mean of a loss counts the targets of all ranks.",
    ).toggles()  # fmt: skip


def _gather_projections() -> None:
    """Gather the joint projection of nn.MultiheadAttention before it is split into queries, keys and values.

    DTensor has no view that splits a cut dim into thirds.
    """
    from torch.distributed.tensor import DTensor, Replicate

    functional: Any = nn.functional
    original = getattr(functional, internals.IN_PROJECTION)

    def project(q: object, k: object, v: object, w: object, b: Any = None) -> object:
        if not isinstance(w, DTensor) or w.placements == (Replicate(),):
            return original(q, k, v, w, b)
        if q is k and k is v:
            whole = functional.linear(q, w, b).redistribute(placements=[Replicate()])
            return [one.contiguous() for one in whole.chunk(3, dim=-1)]
        w, b = (None if one is None else one.redistribute(placements=[Replicate()]) for one in (w, b))
        return original(q, k, v, w, b)

    why = "Attention splits queries, keys and values that are whole."
    patches.replace(functional, internals.IN_PROJECTION, project, why=why)
