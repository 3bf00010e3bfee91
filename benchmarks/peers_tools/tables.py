"""The tables of docs/peers.md."""

from __future__ import annotations

import ast
import dataclasses
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.meter import BenchmarkError

OURS = "echelon"
AS_WRITTEN, FILE_ORDER = "as-written", "file"
ORDERS = (AS_WRITTEN, FILE_ORDER)
TITLES = {
    AS_WRITTEN: "Samples in the order that the script draws",
    FILE_ORDER: "Samples in the order of the dataset (`shuffle=False` in all runs)",
}
BEGIN, END = "<!-- printed by benchmarks/peers.py -->", "<!-- until here -->"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CORPUS = os.path.join(ROOT, "tests", "corpus", "same.py")
LENGTH = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one tool made of one script."""

    script: str
    order: str
    tool: str = ""
    num_changed: int = 0
    outcome: str = ""
    """equal, equal losses, equal weights, different, refused, crashed, needs more"""
    reason: str = ""
    difference: float = 0.0
    """Of the worst tensor's norm."""

    def but(self, **changes: Any) -> Result:
        return dataclasses.replace(self, **changes)


COUNTED = {
    "losses of one device": ("equal", "equal losses"),
    "weights of one device": ("equal", "equal weights"),
    "refused, with a reason": ("refused",),
    "crashed or hung": ("crashed",),
    "needs more than the guide": ("needs more",),
    "silently different": ("different",),
}


def markdown(results: Sequence[Result], peers: Sequence[str]) -> str:
    """Return a summary, then what became of each script, for each order of the samples."""
    tools = [OURS, *peers]
    orders = [order for order in ORDERS if any(one.order == order for one in results)]
    parts = [
        part for order in orders for part in _summary([one for one in results if one.order == order], tools, order)
    ]
    for order in orders:
        parts += _by_script([one for one in results if one.order == order], tools, order)
    return "\n".join([*parts, "", *_reasons(results)])


def _summary(results: Sequence[Result], tools: Sequence[str], order: str) -> list[str]:
    num_scripts = len({one.script for one in results})
    head = ["tool", "changed lines", *COUNTED]
    rows = []
    for tool in tools:
        those = [one for one in results if one.tool == tool]
        counts = [sum(one.outcome in outcomes for one in those) for outcomes in COUNTED.values()]
        rows.append([tool, _lines([one.num_changed for one in those]), *map(str, counts)])
    return [f"**{TITLES[order]}**, {num_scripts} scripts:", "", *_table(head, rows), ""]


def _lines(counts: Sequence[int]) -> str:
    median = statistics.median(counts)
    return f"{median:g}" if min(counts) == max(counts) else f"{median:g} ({min(counts)}–{max(counts)})"


def _by_script(results: Sequence[Result], tools: Sequence[str], order: str) -> list[str]:
    found = {(one.script, one.tool): one for one in results}
    chance = _drawn_in_steps()
    rows = [
        [f"{script}{' *' if script in chance else ''}", *(_cell(found[script, tool]) for tool in tools)]
        for script in sorted({one.script for one in results})
    ]
    return ["", f"## {TITLES[order].replace('`', '')}", "", *_table(["script", *tools], rows)]


def _cell(one: Result) -> str:
    lines = f" · {one.num_changed} lines" if one.num_changed else ""
    if one.outcome != "different":
        return one.outcome + lines
    has_meaning = one.order == FILE_ORDER and math.isfinite(one.difference)  # other samples, any difference
    return "**different**" + (f" by {one.difference:.2g}" if has_meaning else "") + lines


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _reasons(results: Sequence[Result]) -> list[str]:
    """Return each reason for which a script did not run, with the scripts it stopped."""
    scripts: dict[tuple[str, str, str], set[str]] = {}
    for one in results:
        if one.reason:
            reason = one.reason if len(one.reason) <= LENGTH else one.reason[: LENGTH - 2] + " …"
            scripts.setdefault((one.tool, one.outcome, reason.replace("|", "/")), set()).add(one.script)
    lines = [
        f"- {tool}, {outcome}: `{reason.replace('`', '')}`: {', '.join(sorted(names))}"
        for (tool, outcome, reason), names in sorted(scripts.items())
    ]
    return ["## Why scripts were refused or crashed", "", *lines] if lines else []


def _drawn_in_steps() -> set[str]:
    """Return the scripts of which the tests of the corpus say that the mathematics does not allow equality."""
    with open(CORPUS, encoding="utf-8") as file:
        for node in ast.parse(file.read()).body:
            if (
                isinstance(node, ast.AnnAssign)
                and ast.unparse(node.target) == "CLOSE"
                and isinstance(node.value, ast.Dict)
            ):
                return {ast.literal_eval(key) for key in node.value.keys if key is not None}
    raise BenchmarkError(f"{CORPUS} has no table CLOSE of the scripts that cannot be equal")


def write(page: str, text: str) -> None:
    """Put the tables between their marks."""
    with open(page, encoding="utf-8") as file:
        before, begin, rest = file.read().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchmarkError(f"{page} lacks {BEGIN} or {END}: put both back, each on a line of its own")
    with open(page, "w", encoding="utf-8") as file:
        file.write(f"{before}{BEGIN}\n{text}\n{END}{after}")
