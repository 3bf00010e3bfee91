"""Reasons to doubt that the rows of a model's arguments are samples."""

from typing import List, Optional, Tuple

import torch
from torch import nn

Doubt = Tuple[str, str]
"""The reason and the way out of a refusal that holds only if something goes wrong."""


TIME_FIRST = (nn.RNNBase, nn.MultiheadAttention)
"""Layers that expect time in the first dim, unless they have batch_first=True."""


def doubt(module: nn.Module, tensors: List[torch.Tensor], num_rows: int) -> Optional[Doubt]:
    """Return why the rows of a model's first tensor may be no samples; None where there is no reason to doubt."""
    if not tensors:
        return None
    return _of_time(module, tensors[0], num_rows) or of_graph(module, tensors, num_rows)


def _of_time(module: nn.Module, first: torch.Tensor, num_rows: int) -> Optional[Doubt]:
    """Doubt the rows of a model with a layer that expects time in the first dim and samples in the second."""
    layer = next((one for one in module.modules() if isinstance(one, TIME_FIRST) and not one.batch_first), None)
    if layer is None or first.dim() < 2:
        return None
    return of_layer(module, tuple(first.shape), num_rows, type(layer).__name__)


def of_layer(module: nn.Module, shape: Tuple[int, ...], num_rows: int, layer: str) -> Doubt:
    """Return the refusal of a batch that came into a layer with its samples in the first dim, which is time there."""
    return (
        "the script called %s with a tensor of shape %s, and its batch dimension is dim 1: %s has "
        "batch_first=False; the ranks shared dim 0, which has %d time steps"
        % (type(module).__name__, shape, layer, num_rows),
        "use %s(…, batch_first=True), and batches with the samples in dim 0: x.transpose(0, 1); or start one "
        "rank: echelon run -n 1 …" % layer,
    )


def of_graph(module: nn.Module, tensors: List[torch.Tensor], num_rows: int) -> Optional[Doubt]:
    """Doubt rows that may be the nodes of one graph: each node uses other nodes."""
    edges = next((one for one in tensors[1:] if _connects(one, tensors[0], num_rows)), None)
    if edges is None:
        return None
    return (
        "the script called %s with one graph: %d nodes in a tensor of shape %s, and edges in a tensor of shape "
        "%s; nodes are not samples, because each node uses other nodes"
        % (type(module).__name__, num_rows, tuple(tensors[0].shape), tuple(edges.shape)),
        "use batches of several graphs, from a loader that makes them; or start one rank: echelon run -n 1 …",
    )


def _connects(tensor: torch.Tensor, first: torch.Tensor, num_nodes: int) -> bool:
    if tensor.dim() != 2 or num_nodes < 3 or isinstance(tensor, nn.Parameter):
        return False
    is_like_samples = tensor.shape == first.shape and tensor.dtype == first.dtype  # targets of tokens, say
    is_matrix = tensor.shape == (num_nodes, num_nodes) and not is_like_samples
    is_list = not tensor.is_floating_point() and 2 in tensor.shape and num_nodes not in tensor.shape
    return is_matrix or is_list
