"""Do the quotas leave room for checkpoints?"""

from __future__ import annotations

from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted
from echelon.checks.one.room import LEAST_BYTES, LEAST_FILES
from echelon.node.survey.nouns import Quota, Survey
from echelon.units import size


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report quotas that are exhausted, nearly exhausted, or above their soft limit."""
    del wanted
    for quota in survey.quotas.quotas:
        for unit, used, soft, limit, least in (
            ("bytes", quota.used_bytes, quota.soft_bytes, quota.limit_bytes, LEAST_BYTES),
            ("files", quota.used_files, quota.soft_files, quota.limit_files, LEAST_FILES),
        ):
            yield from _judged(quota, unit, used=used, soft=soft, limit=limit, least=least)


def _judged(quota: Quota, unit: str, *, used: int, soft: int, limit: int, least: int) -> Iterator[Finding]:
    name = f"the {quota.owner}'s quota of {unit} on {quota.mount}"
    most = limit or soft
    if most and used >= most:
        severity, message = "error" if limit else "warning", f"{name} is used up: checkpoints go there"
    elif most and most - used < least:
        severity, message = "warning", f"{name} is nearly used up: checkpoints go there"
    elif soft and used >= soft:
        severity, message = "warning", f"{name} is above its soft limit: in some days nobody can write there"
    else:
        return
    yield Finding(
        severity=severity,
        message=message,
        evidence=f"{_shown(used, unit)} of {_shown(most, unit)}",
        remedy=f"remove files that you do not need, or write elsewhere: {quota.command}",
        source="lfs-quota(1), quota(1)",
    )


def _shown(count: int, unit: str) -> str:
    return size(count) if unit == "bytes" else f"{count} files"
