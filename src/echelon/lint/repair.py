"""Make all certain repairs, repeatedly until none is left, and show the changes."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from echelon.lint.finding import Edit, Finding
from echelon.lint.run import Linted

MOST_PASSES = 100
"""A repair may reveal the next: only one mistake is found at a time in a file that cannot be parsed."""
SYNTAX = frozenset({"ECH302", "ECH500", "ECH601"})
"""Rules about unreadable files: a repair must never cause one of these findings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """Files after all repairs."""

    sources: Mapping[str, bytes]
    findings: tuple[Finding, ...]
    """The findings that were repaired."""
    left: Linted
    """The remaining findings."""


def repair(sources: Mapping[str, bytes], look: Callable[[Mapping[str, bytes]], Linted]) -> Repaired:
    """Return the files with all certain repairs; `look` lints them."""
    linted, done = look(sources), []
    given_up: set[tuple[str, str]] = set()
    for _ in range(MOST_PASSES):
        tried = [each for each in linted.findings if each.edits and (each.path, each.code) not in given_up]
        changed, made = _pass(sources, tried)
        if not made:
            break
        after = look(changed)
        worse = _broken(linted, after)
        useless = {(each.path, each.code) for each in made if each.path in worse} | _unmoved(made, linted, after)
        if useless:  # keep these files unrepaired, and repair the others without them
            given_up |= useless
            continue
        sources, linted = changed, after
        done += made
    return Repaired(sources=sources, findings=tuple(done), left=linted)


def _pass(sources: Mapping[str, bytes], findings: Iterable[Finding]) -> tuple[dict[str, bytes], list[Finding]]:
    """Make the repairs that do not overlap; return the files and the repaired findings."""
    changed, made = dict(sources), []
    by_path: dict[str, list[Finding]] = {}
    for finding in findings:
        by_path.setdefault(finding.path, []).append(finding)
    for path, in_file in by_path.items():
        text = _decoded(sources[path])
        if text is not None:
            text, repaired = _edited(text, in_file)
            changed[path] = text.encode()
            made += repaired
    return changed, made


def _decoded(source: bytes) -> str | None:
    """Return the text of a file that can be edited by position and written back unchanged; None for other files."""
    try:
        text = source.decode()
    except UnicodeDecodeError:
        return None
    return None if re.search(r"\r(?!\n)", text) else text


def _edited(text: str, findings: list[Finding]) -> tuple[str, list[Finding]]:
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    text = text.removeprefix(mark)
    starts = [0, *(at + 1 for at, char in enumerate(text) if char == "\n")]
    taken: dict[tuple[int, int], str] = {}
    made = []
    for finding in findings:
        pieces = {_span(edit, starts): edit.new for edit in finding.edits}
        stands = all(text.startswith(edit.old, _span(edit, starts)[0]) for edit in finding.edits)
        is_new = any(taken.get(span) != new for span, new in pieces.items())
        if stands and is_new and not any(_touch(span, other) for span in pieces for other in taken):
            taken |= pieces
            made.append(finding)
    for (begin, end), new in sorted(taken.items(), reverse=True):
        text = text[:begin] + new + text[end:]
    return mark + text, made


def _span(edit: Edit, starts: list[int]) -> tuple[int, int]:
    """Return the start and the end of an edit; positions beyond the text for a missing line."""
    begin = starts[edit.line - 1] + edit.column - 1 if 0 < edit.line <= len(starts) else starts[-1] + (1 << 30)
    return begin, begin + len(edit.old)


def _touch(span: tuple[int, int], other: tuple[int, int]) -> bool:
    return span == other or (span[0] < other[1] and other[0] < span[1])


def _broken(before: Linted, after: Linted) -> set[str]:
    """Return the files that could be parsed before, but not after."""
    counts = [Counter(each.path for each in linted.findings if each.code in SYNTAX) for linted in (before, after)]
    return set(counts[1] - counts[0])


def _unmoved(made: list[Finding], before: Linted, after: Linted) -> set[tuple[str, str]]:
    """Return repairs that did not remove their finding; skip syntax repairs, which reveal the next mistake."""
    counts = [Counter((each.path, each.code, each.message) for each in linted.findings) for linted in (before, after)]
    said = [(each.path, each.code, each.message) for each in made if each.code not in SYNTAX]
    return {(path, code) for path, code, text in said if counts[1][path, code, text] >= counts[0][path, code, text]}


def difference(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """Return the changes as a unified diff for patch -p0."""
    return "".join(
        line for path in before if before[path] != after[path] for line in _hunks(path, before[path], after[path])
    )


def _hunks(path: str, before: bytes, after: bytes) -> Iterator[str]:
    old, new = (text.decode("utf-8", "replace").split("\n") for text in (before, after))
    first, second = ([f"{line}\n" for line in lines[:-1]] + lines[-1:] * bool(lines[-1]) for lines in (old, new))
    for line in difflib.unified_diff(first, second, fromfile=path, tofile=path):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
