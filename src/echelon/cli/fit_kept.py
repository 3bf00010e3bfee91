"""Keep what `echelon fit` predicts in the user's folder, and say how far earlier predictions were right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from echelon.estimate import remembered_memory, trainings
from echelon.machines import kept_rows

if TYPE_CHECKING:
    from echelon.estimate.verdict import Verdict
    from echelon.host import Host
    from echelon.launch.fit import Question, Traced


def keep(question: Question, traced: Traced, verdicts: Iterable[Verdict], host: Host) -> None:
    """Keep the prediction for each way in which `echelon run` trains the script, as it is, with its own batch."""
    rows = []
    for verdict in verdicts:
        layout = verdict.layout
        how = trainings.how(layout)
        training = trainings.of_script(
            question.target, question.arguments, how, layout.num_ranks, has_own_batches=False
        )
        if not how or training is None or layout.rows not in (0, traced.log.rows):
            continue
        prediction = remembered_memory.predict(
            training, verdict, torch=traced.log.torch, rows=traced.log.rows, time=host.now()
        )
        rows.append(prediction.as_row())
    if rows:
        kept_rows.add(remembered_memory.PREDICTIONS, rows, host.environ)


def trust(chips: Iterable[str], torch: str, host: Host) -> list[str]:
    """Say of each chip how far runs were from what was predicted; nothing of a chip on which none was compared."""
    rows = kept_rows.read(remembered_memory.RATIOS, host.environ)
    return [line for chip in dict.fromkeys(chips) if (line := remembered_memory.trust(rows, chip=chip, torch=torch))]
