"""Comments that silence a rule: `# echelon: ignore[ECH207] one job a node`."""

from __future__ import annotations

import re

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
