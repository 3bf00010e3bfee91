"""Find mistakes in one training script at the start of a run: without other rules, and without a machine."""

from __future__ import annotations

import ast

from echelon.lint.finding import Finding
from echelon.lint.look import is_silenced, look, ordered
from echelon.lint.program import Program
from echelon.lint.rules import placement, ranks, sampling, training, wrapped_models

RULES = (*sampling.RULES, *ranks.RULES, *placement.RULES, *training.RULES, *wrapped_models.RULES)
OF_ONE_DEVICE = frozenset({"ECH502", "ECH520", "ECH521", "ECH522"})
"""Rules that apply to a script for one device too; scaling handles the others, which concern ranks."""


def mistakes(path: str, source: bytes, tree: ast.Module, *, is_scaled: bool) -> list[Finding]:
    """Return the findings of a script, worst first, without notes."""
    text = source.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    program = Program(path=path, text=text, tree=tree)
    rules = [rule for rule in RULES if not is_scaled or rule.code in OF_ONE_DEVICE]
    findings = [each for each in look([program], rules) if each.severity != "note"]
    return ordered([each for each in findings if not is_silenced(each.code, program.lines, each.line)])
