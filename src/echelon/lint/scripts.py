"""Mistakes in one training script, found while a run starts: its rules alone are imported, and no machine is known."""

from __future__ import annotations

from echelon.lint.finding import Finding
from echelon.lint.look import look, ordered
from echelon.lint.program import Program
from echelon.lint.rules import placement, ranks, sampling, training, wrapped_models
from echelon.lint.silence import is_silenced
from echelon.script.source import parse

RULES = (*sampling.RULES, *ranks.RULES, *placement.RULES, *training.RULES, *wrapped_models.RULES)
OF_ONE_DEVICE = frozenset({"ECH502", "ECH520", "ECH521", "ECH522"})
"""Mistakes also of a script for one device; what others say of ranks, scaling sees to."""


def mistakes(path: str, source: bytes, *, is_scaled: bool) -> list[Finding]:
    """Return what is wrong in a script, worst first, without notes; nothing of what Python cannot read."""
    text = source.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    tree = parse(text.encode(), path)
    if tree is None:
        return []
    program = Program(path=path, text=text, tree=tree)
    rules = [rule for rule in RULES if not is_scaled or rule.code in OF_ONE_DEVICE]
    found = [each for each in look([program], rules) if each.severity != "note"]
    return ordered([each for each in found if not is_silenced(each.code, program.lines, each.line)])
