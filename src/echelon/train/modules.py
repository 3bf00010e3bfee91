"""The modules of a script, wherever it keeps them."""

import gc
from typing import List

from torch import nn


def living() -> List[nn.Module]:
    """Return every module that there is; asking an object for its class could wake a proxy of something dead."""
    return [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
