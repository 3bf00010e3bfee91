"""The training of a run, by which what was estimated for it is found."""

from __future__ import annotations

import os

from echelon.estimate import trainings
from echelon.estimate.trainings import Training
from echelon.monitor.recorded import Recorded


def of_run(recorded: Recorded, num_ranks: int) -> Training | None:
    """Return the training of a run; None if it is no script, or if the script is gone."""
    words = [str(word) for word in recorded.plan.get("argv") or ()]
    options = recorded.plan.get("scale_options")
    scale = options if isinstance(options, dict) else {"how": "off"}
    if len(words) < 2 or not words[1].endswith(".py"):
        return None
    path = os.path.join(str(recorded.plan.get("folder", "")), os.path.basename(words[1]))
    return trainings.of_script(
        path,
        tuple(words[2:]),
        str(scale.get("how")),
        num_ranks,
        has_own_batches=bool(scale.get("keeps_batch")),
    )
