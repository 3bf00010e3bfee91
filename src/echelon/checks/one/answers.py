"""Does the node answer, and do all of its parts?"""

from __future__ import annotations

from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted, leave_out
from echelon.node.survey.nouns import Survey

_REMEDIES = {
    "topology": "leave the node out and tell the support: its drivers or its /sys do not answer",
    "healths": "leave the node out and tell the support: the devices' driver does not answer",
    "folders": "df -h   finds the file system that hangs",
    "network": "getent hosts $(hostname)   shows whether the name service hangs",
}

_WORDS = {"healths": "devices' health", "topology": "topology (cores and devices)", "folders": "folders for caches"}


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report a node that did not answer, or parts of its survey that did not."""
    del wanted
    for part, why in survey.silent.items():
        if part == "node":
            yield Finding(
                severity="error",
                message="the node does not answer",
                evidence=why,
                remedy=leave_out(survey.node),
            )
            continue
        yield Finding(
            severity="error" if part in ("topology", "devices", "folders") else "warning",
            message=f"its {_WORDS.get(part, part)} {'cannot be read' if 'failed' in why else why}",
            evidence=why,
            remedy=_REMEDIES.get(part, "leave the node out, or run echelon check there again"),
        )
