"""echelon takes a training script from one GPU to a whole supercomputer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from echelon.train.run import Run

__version__ = "0.1.0"


def start() -> Run:
    """Begin the explicit form of scaling; call it once, before the model is made. It works on one process too."""
    from echelon.train import start as train_start

    return train_start.start()
