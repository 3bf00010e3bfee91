"""Apply rules to files, and add page and order to their hits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Protocol

from echelon.lint.finding import Finding, Hit, Rule
from echelon.lint.pages import page_of
from echelon.spec.severity import SEVERITIES


class LintInput(Protocol):
    """The input of rules: a job, a program, or settings."""

    @property
    def path(self) -> str: ...

    @property
    def lines(self) -> list[str]: ...


def look(files: Iterable[LintInput], table: Iterable[Rule]) -> Iterator[Finding]:
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


COMMENT = re.compile(r"#\s*echelon:\s*ignore(?:\[([A-Z0-9,\s]*)\])?", re.IGNORECASE)


def is_silenced(code: str, lines: list[str], line: int) -> bool:
    """Say whether a comment on the line, or on comment lines directly above, silences the rule there."""
    if 0 < line <= len(lines) and _names(lines[line - 1], code):
        return True
    above = line - 2
    while 0 <= above < len(lines) and lines[above].lstrip().startswith("#") and not _is_option(lines[above]):
        if _names(lines[above], code):
            return True
        above -= 1
    return False


def _names(text: str, code: str) -> bool:
    match = COMMENT.search(text)
    if match is None:
        return False
    return match[1] is None or code in re.split(r"[\s,]+", match[1].upper())


def _is_option(text: str) -> bool:
    """Say whether a comment is an option line for Slurm, which ends the comment lines above a place."""
    return re.match(r"#[A-Z]{4,} ", text) is not None
