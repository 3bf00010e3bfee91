"""Do the nodes reach each other, both ways?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from echelon.checks.finding import Finding, Wanted, leave_out
from echelon.node.survey.nouns import Survey


def look(surveys: Sequence[Survey], wanted: Wanted) -> Iterator[Finding]:
    """Report nodes that others cannot reach, and nodes that cannot reach others."""
    del wanted
    by_target: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for survey in surveys:
        for node, why in survey.unreached.items():
            by_target[node].append((survey.node, why))
    unreachable = {node for node, tries in by_target.items() if len(tries) > 1 or len(surveys) == 2}
    for node in sorted(unreachable):
        yield _finding(node, "cannot be reached by other nodes", by_target[node], "error")
    for survey in surveys:
        left = {node: why for node, why in survey.unreached.items() if node not in unreachable}
        if len(left) > 1:
            yield _finding(survey.node, "cannot reach other nodes", list(left.items()), "error")
        elif left:
            node, why = next(iter(left.items()))
            yield _finding(survey.node, f"cannot reach {node}, which others do", [(node, why)], "error")


def _finding(node: str, message: str, tries: Sequence[tuple[str, str]], severity: str) -> Finding:
    why = sorted({reason for _, reason in tries})
    others = ", ".join(other for other, _ in tries[:3]) + (" …" if len(tries) > 3 else "")
    names = any("resolve" in reason for reason in why)
    return Finding(
        node=node,
        severity=severity,
        message=f"{message}: {'; '.join(why[:2])}",
        evidence=f"tried with {len(tries)}: {others}",
        remedy=f"getent hosts {node}   on the other nodes: their name service does not know it"
        if names
        else leave_out(node),
    )
