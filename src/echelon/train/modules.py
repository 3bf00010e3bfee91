"""Find the modules of a script in memory, and the place of each weight in them."""

import gc
from collections import Counter
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

    Places are the same on all ranks, whatever the order in which modules were made. Weights of two modules with one
    description have none.
    """
    every = living()
    inner = {id(child) for module in every for child in module.children()}
    found: Dict[Place, List[nn.Parameter]] = {}
    count: "Counter[Place]" = Counter()
    for module in (one for one in every if id(one) not in inner):
        named = dict(module.named_parameters())
        if any(OF_OPTIMIZERS in name for name in named):
            continue
        weights = list(named.values())
        described = (type(module).__qualname__, tuple((tuple(one.shape), str(one.dtype)) for one in weights))
        count[described] += 1
        found[described] = weights
    return {
        id(weight): (*described, number)
        for described in sorted(found, reverse=True)  # a weight of two modules has the first place
        if count[described] == 1
        for number, weight in enumerate(found[described])
    }


def in_order(weights: Iterable[nn.Parameter]) -> List[nn.Parameter]:
    """Return weights by their places in modules; those without a place come last, in their own order."""
    known = places()
    return sorted(weights, key=lambda one: (id(one) not in known, known.get(id(one), ())))
