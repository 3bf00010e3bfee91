"""All rules: one line adds one. Each has its page in `pages`, found by its code."""

from __future__ import annotations

from echelon.lint.rules import (
    binding,
    launch,
    limits,
    meeting,
    network,
    placement,
    ranks,
    request,
    sampling,
    settings,
    shares,
    shell,
    steps,
    together,
    training,
)

OF_JOBS = (
    *limits.RULES,
    *shares.RULES,
    *request.RULES,
    *launch.RULES,
    *meeting.RULES,
    *steps.RULES,
    *binding.RULES,
    *shell.RULES,
    *network.RULES,
    *together.RULES,
)
OF_PROGRAMS = (*sampling.RULES, *ranks.RULES, *placement.RULES, *training.RULES)
OF_SETTINGS = settings.RULES
SYNTAX = "ECH500"
"""A Python file that Python cannot read: found before any rule can look."""
CODES = tuple(sorted({SYNTAX, *(rule.code for rule in (*OF_JOBS, *OF_PROGRAMS, *OF_SETTINGS))}))
