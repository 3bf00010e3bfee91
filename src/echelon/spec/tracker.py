"""A tracker: where the numbers of a run are written besides the run directory, by a library of its own."""

from __future__ import annotations

from dataclasses import dataclass

LIBRARIES = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny", "wandb": "wandb"}
"""The trackers, each named like its module; the package that brings the module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracker:
    """What --track asks for."""

    name: str
    where: str = ""
    """A folder, for MLflow also the address of a store; empty: a folder in the run directory."""

    @property
    def word(self) -> str:
        return f"{self.name}:{self.where}" if self.where else self.name
