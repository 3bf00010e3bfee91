"""Turn surveys into findings, and name the nodes to leave out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from echelon.checks import collectives
from echelon.checks.between import COMPARISONS
from echelon.checks.finding import Finding, Wanted
from echelon.checks.one import CHECKS
from echelon.node.survey.nouns import Survey
from echelon.spec.severity import SEVERITIES


def examine(surveys: Sequence[Survey], wanted: Wanted) -> list[Finding]:
    """Return every finding, worst first, then in the order of the checks and of the nodes."""
    findings = [each for survey in surveys for each in of_one(survey, wanted)]
    told = {(each.node, each.message) for each in findings}
    for comparison in COMPARISONS:
        seen = [each for each in comparison.look(surveys, wanted) if (each.node, each.message) not in told]
        findings += [replace(each, check=comparison.name) for each in seen]
    return in_order(findings, surveys)


def in_order(findings: Sequence[Finding], surveys: Sequence[Survey]) -> list[Finding]:
    """Return findings worst first, then in the order of the checks and of the nodes."""
    names = [*(check.name for check in CHECKS), *(each.name for each in COMPARISONS), collectives.NAME]
    spec = {name: index for index, name in enumerate(names)}
    place = {survey.node: index for index, survey in enumerate(surveys)}
    return sorted(
        findings,
        key=lambda each: (SEVERITIES.index(each.severity), spec[each.check], each.message, place.get(each.node, -1)),
    )


def of_one(survey: Survey, wanted: Wanted) -> list[Finding]:
    """Return the findings of one node; a check is skipped when a part that it needs did not answer."""
    answered = set(survey.answered)
    return [
        replace(finding, check=check.name, node=survey.node)
        for check in CHECKS
        if answered.issuperset(check.needs)
        for finding in check.look(survey, wanted)
    ]


def bad_nodes(surveys: Sequence[Survey], findings: Sequence[Finding]) -> list[str]:
    """Return the nodes to leave out: those with an error that not all nodes have."""
    having: dict[str, set[str]] = {}
    for finding in findings:
        if finding.severity == "error" and finding.node:
            having.setdefault(finding.message, set()).add(finding.node)
    own = {node for nodes in having.values() if len(nodes) < len(surveys) for node in nodes}
    return [survey.node for survey in surveys if survey.node in own]
