"""Compute activations again in backward, block by block, instead of keeping them."""

from functools import partial
from typing import Any, Dict

import torch
from torch import nn

from ...pytorch import distributed, internals
from . import blocks


def apply(model: nn.Module, model_blocks: Dict[str, nn.Module], kind: str) -> None:
    """Wrap each block: "full" keeps only its input, "selective" also the results of matrix products and attention."""
    settings: Dict[str, Any] = {}
    if kind == "selective":
        from torch.utils.checkpoint import create_selective_checkpoint_contexts

        settings["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    for name, block in model_blocks.items():
        blocks.replace(model, name, distributed.checkpointed(block, **settings))


def _policy(_context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> Any:
    """Keep results that are expensive to compute again: matrix products and attention."""
    from torch.utils.checkpoint import CheckpointPolicy

    return CheckpointPolicy.MUST_SAVE if operation in _dear() else CheckpointPolicy.PREFER_RECOMPUTE


def _dear() -> "set[Any]":
    aten = torch.ops.aten
    products = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default)
    return {*products, *internals.attention_operations()}
