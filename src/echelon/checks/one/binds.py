"""Are the machine's paths bound into the container?"""

from __future__ import annotations

from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted
from echelon.node.survey.nouns import Survey


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report paths that the machine's convention binds and that are missing in the container."""
    missing = [path for path in wanted.binds if path not in survey.software.binds]
    if survey.software.container and missing:
        yield Finding(
            severity="warning",
            message=f"not bound into the container: {', '.join(missing)}",
            evidence=survey.software.container,
            remedy=f"singularity exec --bind {','.join(missing)} …",
            source=f"echelon machines {wanted.machine}",
        )
