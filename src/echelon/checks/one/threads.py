"""Do the threads of all ranks fit on the cores?"""

from __future__ import annotations

from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted
from echelon.environment import digits
from echelon.node.survey.nouns import Survey

COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Multiply threads by ranks; report an invalid thread count, and settings that bind several threads to one core."""
    variables, cores, ranks = survey.settings.variables, survey.cores, wanted.ranks_on(survey)
    fair = max(1, cores.num_usable // ranks)
    for name in COUNTS:
        text = variables.get(name)
        if text is None:
            continue
        first = text.split(",")[0].strip()
        if not digits.whole(first):
            yield Finding(
                severity="warning", message=f"{name} is not a number of threads", evidence=f"{name}={text!r}",
                remedy=f"export {name}={fair}",
            )  # fmt: skip
        elif int(first) * ranks > cores.num_usable and int(first) > 1:
            yield Finding(
                severity="warning",
                message=f"{name} × ranks: {int(first)} × {ranks} = {int(first) * ranks} threads on "
                f"{cores.num_usable} cores",
                evidence=f"allowed: {cores.allowed}",
                remedy=f"export {name}={fair}",
                source="OpenMP specification: OMP_NUM_THREADS; csc-user-guide commit 042c79849",
            )
        elif name == COUNTS[0] and int(first) == 1 and fair >= 4:
            yield Finding(
                severity="note",
                message=f"{name}=1, but there are {fair} cores for each rank",
                evidence=f"{cores.num_usable} cores, {ranks} ranks",
                remedy=f"unset {name}   echelon sets it to the share of each rank",
            )
    yield from _places(survey, ranks)


def _places(survey: Survey, ranks: int) -> Iterator[Finding]:
    for name in ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES"):
        text = survey.settings.variables.get(name, "")
        has_numbers = name == "GOMP_CPU_AFFINITY" or "{" in text or "proclist" in text
        if text and ranks > 1 and has_numbers:
            yield Finding(
                severity="warning",
                message=f"{name} names the same cores for all {ranks} ranks: their threads share these cores",
                evidence=f"{name}={text}",
                remedy=f"unset {name}   and let echelon run --bind auto place the ranks",
            )
