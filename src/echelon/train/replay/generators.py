"""Generators of random numbers that a script has made itself: torch.Generator, numpy's, and random.Random."""

import json
import random
import sys
from typing import Any, List, Tuple

import torch

_NUMPY = "numpy"


def is_generator(value: Any) -> bool:
    """Say whether a value draws random numbers from a state of its own."""
    return isinstance(value, kinds())


def kinds() -> Tuple[type, ...]:
    """Return the classes of generators; those of numpy only if it is imported."""
    numpy = sys.modules.get(_NUMPY)
    of_numpy = () if numpy is None else (numpy.random.Generator, numpy.random.RandomState)
    return (torch.Generator, random.Random, *of_numpy)


def state_of(generator: Any) -> List[Any]:
    """Return the state of a generator as plain data.

    >>> one = random.Random(3)
    >>> state = state_of(one)
    >>> drawn = one.random()
    >>> put_state(one, state)
    >>> one.random() == drawn
    True
    """
    if isinstance(generator, torch.Generator):
        return ["torch", generator.get_state()]
    if isinstance(generator, random.Random):
        return ["python", generator.getstate()]
    state = generator.get_state(legacy=False) if hasattr(generator, "get_state") else generator.bit_generator.state
    return ["numpy", json.dumps(state, default=lambda array: array.tolist())]  # with whole numbers of 128 bits


def put_state(generator: Any, state: List[Any]) -> None:
    """Let a generator continue from a state."""
    if state[0] == "torch":
        generator.set_state(state[1])
    elif state[0] == "python":
        generator.setstate(state[1])
    elif hasattr(generator, "set_state"):
        generator.set_state(json.loads(state[1]))
    else:
        generator.bit_generator.state = json.loads(state[1])


def of_loader(loader: Any) -> List[Any]:
    """Return the generators from which a loader and its samplers draw, each once."""
    samplers = [getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    samplers.append(getattr(samplers[1], "sampler", None))
    found = [getattr(one, "generator", None) for one in (loader, *samplers)]
    return list({id(one): one for one in found if one is not None and is_generator(one)}.values())
