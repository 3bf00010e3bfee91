"""Do the devices report errors, or are they held down?"""

from __future__ import annotations

from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted, leave_out
from echelon.node.survey.nouns import Health, Survey

MANY_CORRECTED = 1000  # since boot; a few corrected errors are normal


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report memory errors, throttling, pending repairs, and links that are narrower than they can be."""
    del wanted
    allowed = {device.pci: device.number for device in survey.devices.devices if device.is_allowed}
    for health in survey.healths.devices:
        if health.pci in allowed:
            yield from _of_one(health, allowed[health.pci], survey)


def _of_one(health: Health, number: int, survey: Survey) -> Iterator[Finding]:
    source = survey.healths.source
    remedy = leave_out(survey.node)
    if health.uncorrected > 0:
        yield Finding(
            severity="error",
            message=f"device {number} has had memory errors that it could not correct: {health.uncorrected}",
            evidence=health.pci, remedy=remedy, source=source,
        )  # fmt: skip
    elif health.corrected >= MANY_CORRECTED:
        yield Finding(
            severity="note",
            message=f"device {number} has corrected many memory errors: {health.corrected}",
            evidence=health.pci, remedy="tell the support: it may fail soon", source=source,
        )  # fmt: skip
    if health.pending:
        yield Finding(
            severity="warning", message=f"device {number}: {health.pending}", evidence=health.pci,
            remedy=remedy, source=source,
        )  # fmt: skip
    if health.throttled:
        yield Finding(
            severity="warning",
            message=f"device {number} runs at reduced speed: {', '.join(health.throttled)}",
            evidence=health.pci, remedy=remedy, source=source,
        )  # fmt: skip
    if 0 < health.pcie_width < health.pcie_width_most and survey.healths.source.startswith("sysfs"):
        yield Finding(
            severity="warning",
            message=f"device {number} has {health.pcie_width} of {health.pcie_width_most} PCIe lanes",
            evidence=health.pci, remedy=remedy, source=source,
        )  # fmt: skip
