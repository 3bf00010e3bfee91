"""echelon takes a training script from one GPU to a whole supercomputer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from echelon.train.parallel.strategy import Strategy as Strategy
    from echelon.train.run import Run

__version__ = "0.1.0"


def start(exact: int = 0) -> Run:
    """Begin the explicit form of scaling; call it once, before the model is made. It works on one process too.

    With `exact=V` batches are computed in V virtual shards, and all has the same bits on 1, 2, 4 … V ranks.
    """
    from echelon.train import start as train_start

    return train_start.start(exact)


def __getattr__(name: str) -> Any:
    """Import Strategy on first use; until then nothing of `echelon.train` is imported."""
    if name == "Strategy":
        import importlib

        return importlib.import_module("echelon.train.parallel.strategy").Strategy  # the command line never uses it
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
