"""Which trackers a script logs to by itself, as far as its imports tell."""

from __future__ import annotations

from echelon.script.imports import Imports

_PACKAGES = {
    "tensorboard": ("torch.utils.tensorboard", "tensorboardX", "tensorboard"),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
}
_LOGGERS = {"tensorboard": "TensorBoardLogger", "mlflow": "MLFlowLogger", "wandb": "WandbLogger"}
"""The classes of Lightning and Fabric."""


def sign(imports: Imports, tracker: str) -> str:
    """Return the import by which a script logs to a tracker; empty: none.

    Arguments such as `report_to="wandb"` of a trainer are no imports.
    """
    names = sorted({*imports.uses, *imports.mentions})
    packages = (package for package in _PACKAGES[tracker] for name in names if (name + ".").startswith(package + "."))
    loggers = (name for name in names if name.rpartition(".")[2] == _LOGGERS[tracker])
    name = next(packages, None) or next(loggers, "")
    return f"it imports {name}" if name else ""
