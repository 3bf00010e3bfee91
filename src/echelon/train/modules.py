"""Find the modules of a script in memory."""

import gc
from typing import List

from torch import nn


def living() -> List[nn.Module]:
    """Return every module in memory; `isinstance` could wake a proxy of a dead object."""
    return [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
