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
    Check(
        name="answers", question="Does the node answer, and do all of its parts?", needs=(), look=settings.check_answers
    ),
    Check(
        name="visibility",
        question="Do the visibility filters leave what was meant?",
        needs=("settings", "devices"),
        look=devices.check_visibility,
    ),
    Check(
        name="devices",
        question="Are all the devices there that the job was given, and that such a node has?",
        needs=("settings", "devices"),
        look=devices.check_devices,
    ),
    Check(
        name="health",
        question="Do the devices report errors, or are they held down?",
        needs=("devices", "healths"),
        look=devices.check_health,
    ),
    Check(
        name="occupied",
        question="Does somebody use the devices already?",
        needs=("devices", "healths"),
        look=devices.check_occupied,
    ),
    Check(
        name="distance",
        question="Are the allowed cores near to the devices?",
        needs=("cores", "devices"),
        look=cores.check_distance,
    ),
    Check(
        name="cores", question="Has every rank cores of its own?", needs=("cores", "devices"), look=cores.check_cores
    ),
    Check(
        name="threads",
        question="Do the threads of all ranks fit on the cores?",
        needs=("settings", "cores", "devices"),
        look=cores.check_threads,
    ),
    Check(
        name="memory",
        question="Is there memory for the ranks, and is it near to their cores?",
        needs=("cores", "devices"),
        look=cores.check_memory,
    ),
    Check(
        name="interfaces",
        question="Do the interfaces that are named exist, and are they up?",
        needs=("settings", "network"),
        look=network.check_interfaces,
    ),
    Check(
        name="names",
        question="Does the node's name lead to the node, for others too?",
        needs=("network",),
        look=network.check_names,
    ),
    Check(
        name="fast network",
        question="Will the collectives take the fast network, and the fast ways within a node?",
        needs=("settings", "network", "devices"),
        look=network.check_fast_network,
    ),
    Check(
        name="plugin",
        question="Is the library there by which the collectives reach the fast network?",
        needs=("settings", "network", "devices", "software"),
        look=network.check_plugin,
    ),
    Check(
        name="container",
        question="Does a container hide what the ranks need?",
        needs=("settings", "software", "network"),
        look=files.check_container,
    ),
    Check(
        name="binds",
        question="Are the machine's paths bound into the container?",
        needs=("software",),
        look=files.check_binds,
    ),
    Check(
        name="torch build",
        question="Is torch built for these devices?",
        needs=("software", "devices"),
        look=devices.check_torch_build,
    ),
    Check(name="caches", question="Where do the caches really lie?", needs=("folders",), look=files.check_caches),
    Check(name="room", question="Is there room to write?", needs=("folders",), look=files.check_room),
    Check(
        name="quota", question="Do the quotas leave room for checkpoints?", needs=("quotas",), look=files.check_quota
    ),
    Check(
        name="limits",
        question="Does the kernel allow what ranks need?",
        needs=("limits", "network", "devices"),
        look=settings.check_limits,
    ),
    Check(
        name="spelling",
        question="Is there a variable that nothing reads, like one that something does?",
        needs=("settings",),
        look=settings.check_spelling,
    ),
    Check(
        name="slowing",
        question="Was something left switched on that slows every step?",
        needs=("settings",),
        look=settings.check_slowing,
    ),
)


COMPARISONS = (
    Comparison(name="alike", question="Are the nodes alike: devices, memory, cores, NICs?", look=alike.check_alike),
    Comparison(name="versions", question="Have all nodes the same software?", look=alike.check_versions),
    Comparison(name="settings", question="Have all nodes the same settings?", look=alike.check_settings),
    Comparison(name="clocks", question="Do the clocks agree?", look=alike.check_clocks),
    Comparison(name="reach", question="Do the nodes reach each other, both ways?", look=alike.check_reach),
)
