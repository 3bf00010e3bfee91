"""Have all nodes the same software?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from echelon.checks.between.majority import majority
from echelon.checks.finding import Finding, Wanted
from echelon.node.survey.nouns import Survey

FIELDS = (
    ("error", "python", "Python"),
    ("warning", "driver", "the devices' driver"),
    ("note", "kernel", "the kernel"),
    ("error", "container", "the container"),
)
SERIOUS = ("torch", "triton", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "deepspeed", "echelon")


def look(surveys: Sequence[Survey], wanted: Wanted) -> Iterator[Finding]:
    """Report nodes that lack a package, or have another version than most nodes."""
    del wanted
    for severity, name, title in FIELDS:
        yield from _drift(surveys, severity, title, name, "")
    names = sorted({name for survey in surveys for name in survey.software.packages})
    for name in names:
        yield from _drift(surveys, "error" if name in SERIOUS else "warning", name, "packages", name)


def _drift(surveys: Sequence[Survey], severity: str, title: str, field: str, key: str) -> Iterator[Finding]:
    def read(survey: Survey) -> str:
        value = getattr(survey.software, field)
        return str(value.get(key, "")) if key else str(value)

    majority_value = majority(surveys, "software", read)
    for survey, value in majority_value.others if majority_value is not None else ():
        usual = majority_value.value if majority_value is not None else ""
        place = survey.software.places.get(key, "") if key else survey.software.interpreter
        yield Finding(
            node=survey.node,
            severity=severity,
            message=f"{title} is {value or 'missing'}; on most nodes it is {usual or 'missing'}",
            evidence=place,
            remedy=f"install it where every node sees it, or leave the node out: --exclude={survey.node}",
        )
