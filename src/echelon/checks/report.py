"""Findings as people and programs read them: one table, worst first, nodes with equal results together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from echelon.checks.finding import Finding
from echelon.environment.hostlist import compress
from echelon.node.survey.nouns import Survey, plain
from echelon.spec.severity import SEVERITIES
from echelon.units import counted

COLOURS = {"error": "31;1", "warning": "33;1", "note": "36;1"}
MOST_DIFFERING = 4  # nodes that the first line names


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A finding with all nodes that have it."""

    finding: Finding
    nodes: tuple[str, ...]


def grouped(findings: Sequence[Finding]) -> list[Group]:
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for finding in findings:
        remedy = finding.remedy.replace(finding.node, "") if finding.node else finding.remedy
        groups.setdefault((finding.severity, finding.check, finding.message, remedy), []).append(finding)
    return [
        Group(finding=found[0], nodes=tuple(dict.fromkeys(each.node for each in found if each.node)))
        for found in groups.values()
    ]


def text(surveys: Sequence[Survey], findings: Sequence[Finding], *, seconds: float, with_colour: bool) -> str:
    lines = [likeness(surveys, findings)]
    groups = grouped(findings)
    if groups:
        shown = [_nodes(group, surveys) for group in groups]
        width = max(len("NODES"), *(len(each) for each in shown))
        lines += ["", f"{'SEVERITY':<8}  {'NODES':<{width}}  FINDING"]
        for group, nodes in zip(groups, shown, strict=True):
            lines += _rows(group, nodes, width, len(surveys), with_colour)
    counts = Counter(group.finding.severity for group in grouped(findings))
    parts = [counted(counts[severity], severity) for severity in SEVERITIES if counts[severity]]
    lines += ["", f"{', '.join(parts) or 'nothing found'} on {counted(len(surveys), 'node')} in {seconds:.1f} s"]
    return "\n".join(lines) + "\n"


def _rows(group: Group, nodes: str, width: int, num_nodes: int, with_colour: bool) -> list[str]:
    finding = group.finding
    severity = f"{finding.severity:<8}"
    painted = f"\033[{COLOURS[finding.severity]}m{severity}\033[0m" if with_colour else severity
    lines = [f"{painted}  {nodes:<{width}}  {finding.message}"]
    gap = " " * (8 + 2 + width + 2)
    which = f" ({group.nodes[0]})" if len(group.nodes) > 1 and num_nodes > 1 else ""
    if finding.evidence:
        lines.append(f"{gap}  seen: {finding.evidence}{which}")
    remedy = finding.remedy
    if finding.node and len(group.nodes) > 1:
        remedy = remedy.replace(finding.node, compress(group.nodes))
    lines.append(f"{gap}  remedy: {remedy}")
    if finding.source:
        lines.append(f"{gap}  source: {finding.source}")
    return lines


def _nodes(group: Group, surveys: Sequence[Survey]) -> str:
    if not group.nodes or (len(group.nodes) == len(surveys) and len(surveys) > 1):
        return "all"
    return compress(group.nodes)


def likeness(surveys: Sequence[Survey], findings: Sequence[Finding]) -> str:
    """Say which nodes have equal results: 127 nodes alike; nid005002 differs: 7 of 8 devices."""
    if len(surveys) == 1:
        return f"{surveys[0].node}: {describe(surveys[0])}"
    results: dict[str, list[str]] = {survey.node: [] for survey in surveys}
    for finding in findings:
        if finding.node in results and finding.severity != "note":
            results[finding.node].append(finding.message)
    (usual, count), *_ = Counter(tuple(each) for each in results.values()).most_common(1)
    like = next(survey for survey in surveys if tuple(results[survey.node]) == usual)
    others: dict[tuple[str, ...], list[str]] = {}
    for node, messages in results.items():
        if tuple(messages) != usual:
            own = tuple(message for message in messages if message not in usual) or (
                "no facts in common with the other nodes",
            )
            others.setdefault(own, []).append(node)
    lines = [f"{counted(count, 'node')} alike: {describe(like)}"]
    for own, nodes in list(others.items())[:MOST_DIFFERING]:
        lines.append(f"{compress(nodes)} {'differs' if len(nodes) == 1 else 'differ'}: {own[0]}"
                     + (f" and {len(own) - 1} more" if len(own) > 1 else ""))  # fmt: skip
    if len(others) > MOST_DIFFERING:
        rest = sum(len(nodes) for nodes in list(others.values())[MOST_DIFFERING:])
        lines.append(f"{rest} more differ in other ways: see the table")
    return "\n".join(lines)


def describe(survey: Survey) -> str:
    devices = [each for each in survey.devices.devices if each.number in survey.devices.visible]
    models = Counter(each.model or "device" for each in devices)
    parts = [f"{count} × {model}" for model, count in models.items()] or ["no device"]
    cores = survey.cores.num_usable
    parts.append(counted(cores, "core") if "cores" in survey.answered else "cores not known")
    fast = [each.name for each in survey.network.interfaces if each.kind in ("slingshot", "infiniband") and each.is_up]
    parts += [", ".join(fast)] if fast else []
    if torch := survey.software.packages.get("torch"):
        parts.append(f"torch {torch}")
    return " · ".join(parts)


def in_one_line(findings: Sequence[Finding]) -> str:
    """Return the worst finding for another command's output; empty if there is none above a note."""
    worth = [group for group in grouped(findings) if group.finding.severity != "note"]
    more = f", and {len(worth) - 1} more: echelon check shows them" if len(worth) > 1 else ""
    return line(worth[0]) + more if worth else ""


def line(group: Group) -> str:
    where = f" on {compress(group.nodes)}" if group.nodes else ""
    return f"{group.finding.severity}{where}: {group.finding.message}; {group.finding.remedy}"


def fields(group: Group) -> dict[str, Any]:
    finding = group.finding
    return {
        "severity": finding.severity,
        "check": finding.check,
        "nodes": list(group.nodes),
        "message": finding.message,
        "evidence": finding.evidence,
        "remedy": finding.remedy,
        "source": finding.source,
    }


def as_json(
    surveys: Sequence[Survey],
    findings: Sequence[Finding],
    *,
    exclude: Sequence[str],
    seconds: float,
    more: dict[str, Any],
) -> str:
    counts = Counter(finding.severity for finding in findings)
    groups = [fields(group) for group in grouped(findings)]
    return json.dumps(
        {
            "format": 1,
            "seconds": round(seconds, 3),
            "counts": {severity: counts[severity] for severity in SEVERITIES},
            "exclude": list(exclude),
            "findings": groups,
            **more,
            "surveys": [plain(survey) for survey in surveys],
        },
        indent=1,
    )
