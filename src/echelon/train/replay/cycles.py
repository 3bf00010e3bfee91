"""Refuse itertools.cycle over batches: it keeps the batches of its first round, which a checkpoint cannot reach."""

import gc
import itertools
from typing import Any

from ..global_tensors.tensors import tensors_of
from ..scaling_error import ScalingError


def refuse() -> None:
    """Raise ScalingError if a living itertools.cycle keeps tensors."""
    for one in gc.get_objects():
        if type(one) is itertools.cycle and any(map(_has_tensors, gc.get_referents(one))):
            raise ScalingError(
                "--checkpoint-every cannot keep the batches that itertools.cycle holds: it reads a loader once, and "
                "then gives the same batches again",
                "write a generator in its place: def forever(loader): while True: yield from loader",
            )


def _has_tensors(value: Any) -> bool:
    return type(value) is list and bool(tensors_of(value[:1]))
