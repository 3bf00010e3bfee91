"""Findings as other programs read them: SARIF 2.1.0, which code hosts and editors show, and GitHub's annotations.

Sources: OASIS, Static Analysis Results Interchange Format 2.1.0; GitHub, workflow commands (`::error file=…`).
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from echelon.lint.finding import Edit, Finding
from echelon.lint.pages import Page
from echelon.lint.run import Linted

SARIF_VERSION = "2.1.0"
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
ANNOTATIONS = {"error": "error", "warning": "warning", "note": "notice"}


def sarif(linted: Linted, pages: dict[str, Page], version: str) -> str:
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


def _rule(page: Page) -> dict[str, Any]:
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
        "locations": [
            {"physicalLocation": {"artifactLocation": {"uri": quote(finding.path)}, "region": region}},
        ],
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
