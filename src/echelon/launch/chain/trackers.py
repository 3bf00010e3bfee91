"""The variables by which trackers of experiments go on with the run of the first job."""

from __future__ import annotations

from collections.abc import Collection


def variables(name: str, has: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Return the variables that ranks get; what the user has set in `has` is left as it is.

    https://docs.wandb.ai/guides/runs/resuming
    https://docs.neptune.ai/logging/custom_run_id

    MLflow's run has to exist already, and Comet's `Experiment()` refuses a key that exists: their variables
    (MLFLOW_RUN_ID, COMET_EXPERIMENT_KEY) are the user's, and every job of the chain inherits them.
    """
    rows = []
    if "WANDB_RUN_ID" not in has:
        rows.append(("WANDB_RUN_ID", name))
    if "WANDB_RESUME" not in has:
        rows.append(("WANDB_RESUME", "allow"))
    if "NEPTUNE_CUSTOM_RUN_ID" not in has:
        rows.append(("NEPTUNE_CUSTOM_RUN_ID", name))
    return tuple(rows)
