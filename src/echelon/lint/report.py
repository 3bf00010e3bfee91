"""Format findings for people and programs: text, JSON, SARIF 2.1.0, GitHub's annotations.

Findings as other programs read them: SARIF 2.1.0, which code hosts and editors show, and GitHub's annotations.

Sources: OASIS, Static Analysis Results Interchange Format 2.1.0; GitHub, workflow commands (`::error file=…`).
"""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from echelon.lint.finding import Edit, Finding
from echelon.lint.pages import RulePage
from echelon.lint.run import Linted
from echelon.spec.severity import SEVERITIES
from echelon.units import counted

WIDTH = 110  # the number of columns that are shown of a source line, and of wrapped text
CODES = {"error": "31;1", "warning": "33;1", "note": "36;1", "dim": "2", "bold": "1"}


def text(linted: Linted, *, num_files: int, with_colour: bool) -> str:
    lines: list[str] = []
    path = None
    for finding in linted.findings:
        if finding.path != path:
            lines += [*([""] if lines else []), _paint(finding.path, "bold", with_colour)]
            path = finding.path
        lines += ["", *_lines(finding, with_colour)]
    if lines:
        lines.append("")
    return "\n".join([*lines, _summary(linted, num_files), ""])


def _lines(finding: Finding, with_colour: bool) -> list[str]:
    head = _paint(f"{finding.severity}[{finding.code}]", finding.severity, with_colour)
    number = str(finding.line)
    gutter = " " * len(number)
    shown, caret = _excerpt(finding)
    lines = [f"  {head} {finding.message}"]
    if shown.strip():
        lines += [f"  {number} │ {shown}", f"  {gutter} │ {_paint(caret, finding.severity, with_colour)}"]
    else:
        lines.append(f"  {number} │")
    repair = finding.repair.splitlines()
    if repair:
        lines += [f"  {gutter} = repair: {repair[0]}", *(f"  {gutter}           {line}" for line in repair[1:])]
    return lines


def _excerpt(finding: Finding) -> tuple[str, str]:
    """Return the source line, shortened around the place if it is long, and the marks below it."""
    whole = "".join(char if char.isprintable() else " " for char in finding.text.expandtabs(1))
    start = max(0, finding.column - 1)
    width = max(1, min(finding.width, len(whole) - start)) if start < len(whole) else 1
    if len(whole) <= WIDTH:
        return whole, " " * start + "^" * min(width, WIDTH)
    first = max(0, min(start - 20, len(whole) - WIDTH))
    before = "…" if first else ""
    cut = before + whole[first + len(before) : first + WIDTH]
    return cut + ("…" if first + WIDTH < len(whole) else ""), " " * (start - first) + "^" * min(
        width, WIDTH - start + first
    )


def _paint(words: str, role: str, with_colour: bool) -> str:
    return f"\033[{CODES[role]}m{words}\033[0m" if with_colour else words


def _summary(linted: Linted, num_files: int) -> str:
    counts = Counter(finding.severity for finding in linted.findings)
    parts = [counted(counts[severity], severity) for severity in SEVERITIES if counts[severity]]
    result = ", ".join(parts) or "nothing found"
    silenced = f", {linted.num_silenced} silenced" if linted.num_silenced else ""
    judged = f", judged for {', '.join(linted.machines)}" if linted.machines else ""
    certain = sum(1 for finding in linted.findings if finding.edits)
    repaired = f"; --fix repairs {certain}" if certain else ""
    explained = linted.findings[0].code if linted.findings else ""
    more = f"; echelon lint --explain {explained} gives the reason" if explained else ""
    return f"{result} in {counted(num_files, 'file')}{silenced}{judged}{repaired}{more}"


def as_json(linted: Linted) -> str:
    counts = Counter(finding.severity for finding in linted.findings)
    return json.dumps(
        {
            "format": 1,
            "machines": list(linted.machines),
            "counts": {severity: counts[severity] for severity in SEVERITIES},
            "silenced": linted.num_silenced,
            "findings": [asdict(finding) for finding in linted.findings],
        },
        indent=1,
    )


def listing(pages: dict[str, RulePage]) -> str:
    return "".join(f"{page.code}  {page.severity:<7}  {page.title}\n" for page in pages.values())


def explanation(page: RulePage) -> str:
    lines = [
        f"{page.code} ({page.severity}): {page.title}",
        "",
        *textwrap.wrap(page.why, WIDTH),
        "",
        f"source: {page.source}",
    ]
    for title, example in (("bad", page.bad), ("good", page.good)):
        lines += ["", f"{title}:" + (f" (on {page.machine})" if page.machine else ""), ""]
        lines += [f"    {line}".rstrip() for line in example.splitlines()]
    lines += [
        "",
        f"to silence a finding, put a comment on its line or above it: # echelon: ignore[{page.code}] the reason",
        "",
    ]
    return "\n".join(lines)


SARIF_VERSION = "2.1.0"
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
ANNOTATIONS = {"error": "error", "warning": "warning", "note": "notice"}


def sarif(linted: Linted, pages: dict[str, RulePage], version: str) -> str:
    """Return one run of SARIF; its severity levels have the same names as ours."""
    codes = sorted({finding.code for finding in linted.findings})
    driver = {
        "name": "echelon lint",
        "version": version,
        "rules": [_rule(pages[code]) if code in pages else {"id": code} for code in codes],
    }
    results = [_result(finding, codes.index(finding.code)) for finding in linted.findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": SARIF_SCHEMA, "version": SARIF_VERSION, "runs": [run]}, indent=1)


def _rule(page: RulePage) -> dict[str, Any]:
    return {
        "id": page.code,
        "shortDescription": {"text": page.title},
        "fullDescription": {"text": page.why},
        "help": {"text": f"{page.why}\n\nSource: {page.source}"},
        "defaultConfiguration": {"level": page.severity},
    }


def _result(finding: Finding, index: int) -> dict[str, Any]:
    repair = f"\nRepair: {finding.repair}" if finding.repair else ""
    region = {
        "startLine": max(1, finding.line),
        "startColumn": max(1, finding.column),
        "endColumn": max(1, finding.column) + max(1, finding.width),
    }
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": finding.message + repair},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": quote(finding.path)}, "region": region}}],
        **({"fixes": [_fix(finding)]} if finding.edits else {}),
    }


def _fix(finding: Finding) -> dict[str, Any]:
    """Return the repair that --fix makes, for editors."""
    replacements = [{"deletedRegion": _region(edit), "insertedContent": {"text": edit.new}} for edit in finding.edits]
    change = {"artifactLocation": {"uri": quote(finding.path)}, "replacements": replacements}
    return {"description": {"text": finding.repair}, "artifactChanges": [change]}


def _region(edit: Edit) -> dict[str, int]:
    lines = edit.old.count("\n")
    last = edit.old.rpartition("\n")[2]
    return {
        "startLine": edit.line,
        "startColumn": edit.column,
        "endLine": edit.line + lines,
        "endColumn": len(last) + 1 if lines else edit.column + len(last),
    }


def github(linted: Linted) -> str:
    """Return a line for each finding; a GitHub workflow shows it beside the line of code."""
    return "".join(
        f"::{ANNOTATIONS[finding.severity]} file={_property(finding.path)},line={max(1, finding.line)},"
        f"col={max(1, finding.column)},endColumn={max(1, finding.column) + max(1, finding.width)},"
        f"title={_property(finding.code)}::{_data(_words(finding))}\n"
        for finding in linted.findings
    )


def _words(finding: Finding) -> str:
    return f"{finding.message}\nrepair: {finding.repair}" if finding.repair else finding.message


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
