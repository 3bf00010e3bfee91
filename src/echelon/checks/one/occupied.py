"""Does somebody use the devices already?"""

from __future__ import annotations

from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted, leave_out
from echelon.node.survey.nouns import Survey
from echelon.units import GIB, size

MUCH_BYTES = 2 * GIB  # an idle device's driver and firmware use some hundred megabytes


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report processes on devices, and used memory that belongs to no process."""
    del wanted
    allowed = {device.pci: device.number for device in survey.devices.devices if device.is_allowed}
    for health in survey.healths.devices:
        if health.pci not in allowed:
            continue
        number = allowed[health.pci]
        if health.processes:
            pids = " ".join(process.partition(" ")[0] for process in health.processes)
            yield Finding(
                severity="warning",
                message=f"device {number} is in use by {', '.join(health.processes)}",
                evidence=f"{size(max(0, health.used_bytes))} of its memory are in use",
                remedy=f"kill {pids}   if they are yours; else leave the node out: --exclude={survey.node}",
                source=survey.healths.source,
            )
        elif health.used_bytes > MUCH_BYTES:
            yield Finding(
                severity="warning",
                message=f"device {number}: {size(health.used_bytes)} of its memory are in use, but no process is "
                "visible",
                evidence=health.pci,
                remedy=leave_out(survey.node),
                source=survey.healths.source,
            )
