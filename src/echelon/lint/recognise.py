"""Find the machine of a job that names none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from echelon.lint.toml import words

if TYPE_CHECKING:
    from echelon.lint.job import Job
    from echelon.machines.machine import Machine


def recognise(job: Job, machines: Mapping[str, Machine]) -> Machine | None:
    """Return the only machine that has the job's partition, and its type of device if the job names one.

    If many sites have a partition of this name, the type of device must agree.
    """
    partition = job.value("partition")
    if not partition:
        return None
    matches = []
    for machine in machines.values():
        row = next((row for row in machine.partitions if row.name == partition), None)
        kinds = {kind.gres for kind in machine.node_types if kind.gres.count(":")}
        typed = any(f"{gres}:" in f"{job.value('gres')}:" for gres in kinds)
        if row is None or (":" in job.value("gres").removeprefix("gpu:") and not typed):
            continue
        is_common = partition in words()["machines"]["common_partitions"]
        if not is_common or (typed and (machine.account != "required" or job.value("account").startswith("project_"))):
            matches.append(machine)
    return matches[0] if len(matches) == 1 else None
