"""All rules, by the kind of file that they read. Each rule has a page in `pages`, found by its code."""

from __future__ import annotations

from echelon.lint.rules import (
    binding,
    flow,
    launch,
    limits,
    meeting,
    network,
    request,
    resource_conflicts,
    settings,
    several_nodes,
    shares,
    shell,
    steps,
    together,
)
from echelon.lint.scripts import RULES

_OF_JOBS = (limits, shares, request, launch, meeting, steps, binding, shell, network, together, resource_conflicts,
            flow, several_nodes)  # fmt: skip
OF_JOBS = tuple(rule for rules in _OF_JOBS for rule in rules.RULES)
OF_PROGRAMS = RULES
OF_SETTINGS = settings.RULES
SYNTAX = "ECH500"  # the rule for a Python file that cannot be parsed, which is found before any other
CODES = tuple(sorted({SYNTAX, *(rule.code for rule in (*OF_JOBS, *OF_PROGRAMS, *OF_SETTINGS))}))
