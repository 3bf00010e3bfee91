"""One graph, whose nodes look at each other: its nodes are no samples."""

from typing import List, Optional

import torch
from torch import nn

from ..refusal import Refusal


def doubt(module: nn.Module, tensors: List[torch.Tensor], num_rows: int) -> Optional[Refusal]:
    """Return why the rows of a model's first tensor may be the nodes of one graph; None: nothing speaks for it."""
    edges = next((one for one in tensors[1:] if _connects(one, num_rows)), None)
    if edges is None:
        return None
    return Refusal(
        "%s was called with one graph: %d nodes, a tensor of shape %s, and what connects them, of shape %s; "
        "nodes are no samples, for each looks at others"
        % (type(module).__name__, num_rows, tuple(tensors[0].shape), tuple(edges.shape)),
        "batches of several graphs, from a loader that makes them; or one rank: echelon run -n 1 …",
    )


def _connects(tensor: torch.Tensor, num_nodes: int) -> bool:
    if tensor.dim() != 2 or num_nodes < 3 or isinstance(tensor, nn.Parameter):
        return False
    is_matrix = tensor.shape == (num_nodes, num_nodes)
    is_list = not tensor.is_floating_point() and 2 in tensor.shape and num_nodes not in tensor.shape
    return is_matrix or is_list
