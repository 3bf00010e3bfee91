"""Find the modules of a script in memory, and the place of each weight in them."""

import gc
import hashlib
from typing import Any, Dict, Iterable, List, Tuple

from torch import nn

Place = Tuple[Any, ...]
OF_OPTIMIZERS = "parameters_of_optimizers"
"""In the names of the weights of echelon's own module, which has them in the order of the optimizers."""


def living() -> List[nn.Module]:
    """Return every module in memory; `isinstance` could wake a proxy of a dead object."""
    return [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]


def places() -> Dict[int, Place]:
    """Return the place of each weight, by its id: a description of its outermost module, and its number in there.

    The weights of two modules with one description have the same places.
    """
    every = living()
    inner = {id(child) for module in every for child in module.children()}
    place_of: Dict[int, Place] = {}
    for module in (one for one in every if id(one) not in inner):
        named = dict(module.named_parameters())
        if any(OF_OPTIMIZERS in name for name in named):
            continue
        kind = type(module).__qualname__.removeprefix("FSDP")  # which fully_shard() adds
        described = (kind, tuple((tuple(one.shape), str(one.dtype)) for one in named.values()))
        for number, weight in enumerate(named.values()):
            place = (*described, number)
            place_of[id(weight)] = min(place, place_of.get(id(weight), place))
    return place_of


def marks(weights: Iterable[nn.Parameter]) -> List[str]:
    """Return a mark of each weight's place, which another process understands."""
    known = places()
    return [hashlib.sha256(repr(known.get(id(one), ())).encode()).hexdigest() for one in weights]
