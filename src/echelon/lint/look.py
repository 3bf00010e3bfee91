"""Apply rules to files, and add page and order to their hits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from echelon.lint.finding import Finding, Hit, Rule
from echelon.lint.pages import page_of
from echelon.spec.severity import SEVERITIES


class File(Protocol):
    """The input of rules: a job, a program, or settings."""

    @property
    def path(self) -> str: ...

    @property
    def lines(self) -> list[str]: ...


def look(files: Iterable[File], table: Iterable[Rule]) -> Iterator[Finding]:
    """Apply every rule to every file."""
    rows = tuple(table)
    for file in files:
        for rule in rows:
            try:
                hits = tuple(dict.fromkeys(rule.find(file)))
            except RecursionError:  # an expression with thousands of parts
                message = f"the nesting is too deep for {rule.code}, which did not check this file"
                hits = (Hit(line=1, message=message, severity="note"),)
            for hit in hits:
                yield finding(rule.code, file.path, file.lines, hit)


def finding(code: str, path: str, lines: list[str], hit: Hit) -> Finding:
    """Return a hit with everything from its rule's page."""
    page = page_of(code)
    return Finding(
        code=code,
        severity=hit.severity or page.severity,
        path=path,
        line=hit.line,
        column=hit.column,
        width=hit.width,
        text=lines[hit.line - 1] if 0 < hit.line <= len(lines) else "",
        message=hit.message,
        repair=hit.repair,
        edits=hit.edits,
        why=page.why,
        source=page.source,
    )


def ordered(findings: list[Finding]) -> list[Finding]:
    """Sort files and their findings by severity, then findings from top to bottom."""
    worst: dict[str, int] = {}
    for finding in findings:
        rank = SEVERITIES.index(finding.severity)
        worst[finding.path] = min(rank, worst.get(finding.path, rank))
    return sorted(
        findings,
        key=lambda each: (
            worst[each.path],
            each.path,
            SEVERITIES.index(each.severity),
            each.line,
            each.column,
            each.code,
        ),
    )
