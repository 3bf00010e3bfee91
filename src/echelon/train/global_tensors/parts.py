"""Two parts of this rank's rows, computed by a copy of the model: they show how its outputs follow from its samples."""

import copy
from typing import Any, Callable, Dict, NamedTuple, Optional, Set, Tuple

import torch
from torch import nn

from ...pytorch import internals
from .tensors import Sharded


class Call(NamedTuple):
    """A model that was called, and how a copy of it computes some of this rank's rows."""

    module: nn.Module
    lead: Sharded
    compute: Callable[[nn.Module, int, int], Any]
    """A function that computes some rows; its arguments are the copy, the first row and the number of rows."""
    say: Callable[[str], None]
    fits: Optional[Dict[int, Set[str]]] = None
    """What the trial of this call has shown of the numbers among its outputs, by their place."""

    @property
    def num_rows(self) -> int:
        """The number of this rank's rows; 0 for a placeholder."""
        return self.lead.local.size(self.lead.dim_of_rows) if self.lead.rows[self.lead.world.rank] else 0

    @property
    def num_first(self) -> int:
        """The number of rows in the first part."""
        return max(1, self.num_rows // 3)


def of_two(call: Call) -> Optional[Tuple[Any, Any]]:
    """Return the outputs for two parts; None for less than two rows, or if the model can compute no part of a batch."""
    if call.num_rows < 2:
        return None
    try:
        twin = copy.deepcopy(call.module)
        for submodule in twin.modules():
            for hooks in internals.forward_hooks(submodule):
                hooks.clear()
        with torch.no_grad():
            first = call.compute(twin, 0, call.num_first)
            return first, call.compute(twin, call.num_first, call.num_rows - call.num_first)
    except Exception:  # noqa: BLE001  (a copy of a script's model may raise anything)
        return None
