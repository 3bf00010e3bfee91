"""Compare versions as pip writes them, as far as choosing between releases needs that."""

from __future__ import annotations

import re

OPERATORS = re.compile(r"\s*(===|==|!=|<=|>=|~=|<|>)\s*([\w.*+!-]+)\s*")


def parts(version: str) -> tuple[int, ...]:
    """Return the numbers of a release: 2.13.0+cpu, 2.13.0rc1 and 2.13.0.dev1 are (2, 13, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", version.strip().lstrip("v"))
    return tuple(map(int, match.group().split("."))) if match else ()


def is_older(version: str, than: str) -> bool:
    """Say whether a version comes before another; trailing zeros do not count."""
    ours, theirs = parts(version), parts(than)
    width = max(len(ours), len(theirs))
    return ours + (0,) * (width - len(ours)) < theirs + (0,) * (width - len(theirs))


def fits(version: str, wanted: str) -> bool:
    """Say whether a version satisfies a requirement such as ">=1.1,<2" or "==2.13.*"."""
    return all(_is_allowed(version, operator, bound) for operator, bound in OPERATORS.findall(wanted))


def _is_allowed(version: str, operator: str, bound: str) -> bool:
    if operator in ("==", "===", "!="):
        is_same = _is_equal(version, bound)
        return not is_same if operator == "!=" else is_same
    if operator == "~=":
        prefix = parts(bound)[:-1]
        return not is_older(version, bound) and parts(version)[: len(prefix)] == prefix
    older, newer = is_older(version, bound), is_older(bound, version)
    return {"<": older, ">": newer, "<=": not newer, ">=": not older}[operator]


def _is_equal(version: str, bound: str) -> bool:
    if bound.endswith(".*"):
        prefix = parts(bound)
        return parts(version)[: len(prefix)] == prefix
    return not is_older(version, bound) and not is_older(bound, version)
