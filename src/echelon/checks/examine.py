"""Turn surveys into findings, and name the nodes to leave out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from echelon.checks import (
    alike,
    collectives,
    cores,
    devices,  # fmt: skip
    files,
    network,
    settings,
)
from echelon.checks.finding import Check, Comparison, Finding, Wanted
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
    names = [*(check.name for check in OF_ONE), *(each.name for each in COMPARISONS), collectives.NAME]
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
        for check in OF_ONE
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


OF_ONE = (
    Check(name="answers", needs=(), look=settings.check_answers),
    Check(name="visibility", needs=("settings", "devices"), look=devices.check_visibility),
    Check(name="devices", needs=("settings", "devices"), look=devices.check_devices),
    Check(name="health", needs=("devices", "healths"), look=devices.check_health),
    Check(name="occupied", needs=("devices", "healths"), look=devices.check_occupied),
    Check(name="distance", needs=("cores", "devices"), look=cores.check_distance),
    Check(name="cores", needs=("cores", "devices"), look=cores.check_cores),
    Check(name="threads", needs=("settings", "cores", "devices"), look=cores.check_threads),
    Check(name="memory", needs=("cores", "devices"), look=cores.check_memory),
    Check(name="interfaces", needs=("settings", "network"), look=network.check_interfaces),
    Check(name="names", needs=("network",), look=network.check_names),
    Check(name="fast network", needs=("settings", "network", "devices"), look=network.check_fast_network),
    Check(name="plugin", needs=("settings", "network", "devices", "software"), look=network.check_plugin),
    Check(name="container", needs=("settings", "software", "network"), look=files.check_container),
    Check(name="binds", needs=("software",), look=files.check_binds),
    Check(name="torch build", needs=("software", "devices"), look=devices.check_torch_build),
    Check(name="caches", needs=("folders",), look=files.check_caches),
    Check(name="room", needs=("folders",), look=files.check_room),
    Check(name="quota", needs=("quotas",), look=files.check_quota),
    Check(name="limits", needs=("limits", "network", "devices"), look=settings.check_limits),
    Check(name="spelling", needs=("settings",), look=settings.check_spelling),
    Check(name="slowing", needs=("settings",), look=settings.check_slowing),
)


COMPARISONS = (
    Comparison(name="alike", look=alike.check_alike),
    Comparison(name="versions", look=alike.check_versions),
    Comparison(name="settings", look=alike.check_settings),
    Comparison(name="clocks", look=alike.check_clocks),
    Comparison(name="reach", look=alike.check_reach),
)
