"""Do the clocks agree?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from echelon.checks.finding import Finding, Wanted, leave_out
from echelon.node.survey.nouns import Survey

NOTICED_SECONDS = 1.0  # people read the logs of several nodes side by side
WRONG_SECONDS = 30.0  # beyond this, tickets and certificates are refused, and files seem to come from the future
FIRST_TIME = 1_704_067_200.0  # 2024-01-01: an earlier clock was never set


def look(surveys: Sequence[Survey], wanted: Wanted) -> Iterator[Finding]:
    """Report clocks that differ from the median of all clocks."""
    answered = [survey for survey in surveys if survey.answered]
    if not answered:
        return
    middle = median(survey.ahead_seconds for survey in answered)
    for survey in answered:
        apart = survey.ahead_seconds - middle
        if 0 < survey.time < FIRST_TIME:
            yield _finding(survey, "error", "its clock was never set", f"seconds since 1970: {survey.time:.0f}")
        elif abs(apart) >= NOTICED_SECONDS and len(answered) > 1:
            severity = "error" if abs(apart) >= WRONG_SECONDS else "warning"
            direction = "ahead" if apart > 0 else "behind"
            yield _finding(
                survey, severity, f"its clock is {abs(apart):.0f} s {direction}", f"median of {len(answered)} nodes"
            )
    if wanted.now and len(answered) > 1 and abs(middle) >= WRONG_SECONDS:
        yield Finding(
            severity="warning",
            message=f"the nodes' clocks are {abs(middle):.0f} s {'ahead of' if middle > 0 else 'behind'} this one",
            evidence="where echelon check was started",
            remedy="chronyc tracking   shows which clock is wrong",
        )


def _finding(survey: Survey, severity: str, message: str, evidence: str) -> Finding:
    return Finding(
        node=survey.node, severity=severity, message=message, evidence=evidence,
        remedy=leave_out(survey.node),
    )  # fmt: skip
