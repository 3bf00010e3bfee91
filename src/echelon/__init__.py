"""echelon takes a training script from one GPU to a whole supercomputer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from echelon.train.parallel.strategy import Strategy as Strategy
    from echelon.train.parallelism.base import Parallelism as Parallelism
    from echelon.train.parallelism.fully_sharded import FullySharded as FullySharded
    from echelon.train.parallelism.replicated import Replicated as Replicated
    from echelon.train.parallelism.shared_batches import SharedBatches as SharedBatches
    from echelon.train.run import Run

__version__ = "0.1.0"


def start(exact: int = 0) -> Run:
    """Begin the explicit form of scaling; call it once, before the model is made. It works on one process too.

    With `exact=V` batches are computed in V virtual shards, and all has the same bits on 1, 2, 4 … V ranks.
    """
    from echelon.train import start as train_start

    return train_start.start(exact)


_OF_TRAINING = {
    "Strategy": "parallel.strategy",
    "Parallelism": "parallelism.base",
    "SharedBatches": "parallelism.shared_batches",
    "Replicated": "parallelism.replicated",
    "FullySharded": "parallelism.fully_sharded",
}


def __getattr__(name: str) -> Any:
    """Give the classes of training to whom asks for them; nothing of training is imported before."""
    if name in _OF_TRAINING:
        import importlib

        return getattr(importlib.import_module(f"echelon.train.{_OF_TRAINING[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
