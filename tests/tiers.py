"""Which tests run when: this is the only place that decides.

| tier | what it has | command |
|---|---|---|
| quick | what starts no process and imports no torch | `make quick` |
| test | each promise once, by the cheapest test that can fail | `make test` |
| all | all cases, all numbers of ranks, all scripts | `make test-all` |
| soak | the same with many more random moments, for hours | `make soak` |

`pytest --tier=all` chooses one; "test" is chosen without it. A test belongs to "test" unless it has the marker
`@pytest.mark.tier("all")` or `@pytest.mark.tier("soak")`. Long lists of cases and numbers of random cases are shortened
by `some`, `product` and `pick`. What is "quick" is not marked: it is seen from what the module of a test imports.
"""

import functools
import itertools
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")
TIERS = ("quick", "test", "all", "soak")
STARTERS = ("subprocess", "multiprocessing", "torch", "tests.cluster", "tests.warm", "tests.runs")
"""A module of tests that imports one of these starts processes, or takes the three seconds of torch."""
HERE = Path(__file__).parent
_chosen = "test"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer --tier."""
    parser.addoption("--tier", choices=TIERS, default="test", help="which tests run: tests/tiers.py")


def pytest_configure(config: pytest.Config) -> None:
    """Know the tier before any module of tests asks for it."""
    global _chosen
    _chosen = config.getoption("tier")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what belongs to a later tier."""
    chosen: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        chosen[_belongs(item)].append(item)
    items[:] = chosen[True]
    config.hook.pytest_deselected(items=chosen[False])


def has(tier: str) -> bool:
    """Return whether the chosen tier has all that this one has."""
    return TIERS.index(_chosen) >= TIERS.index(tier)


def some(cases: Sequence[Case], every: int, first: int = 0) -> Sequence[Case]:
    """Return each of `every` cases from this one on, or all cases in the tier "all"."""
    return cases if has("all") else cases[first::every]


def pick(usual: Case, **of_tier: Case) -> Case:
    """Return what this tier or the last one before it has: `pick(500, all=10_000)`."""
    return next((of_tier[tier] for tier in reversed(TIERS) if tier in of_tier and has(tier)), usual)


def product(**axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize with all combinations of several parameters; before the tier "all" with each value once or more."""
    values = [list(axis) for axis in axes.values()]
    sample = [tuple(axis[row % len(axis)] for axis in values) for row in range(max(map(len, values)))]
    cases = pick(sample, all=list(itertools.product(*values)))
    return pytest.mark.parametrize(tuple(axes), cases)


def in_all(*case: Any) -> Any:
    """Return a case of a list that the tier "all" has."""
    return pytest.param(*case, marks=pytest.mark.tier("all"))


def _belongs(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("tier")
    if marker is not None and not has(marker.args[0]):
        return False
    return _chosen != "quick" or not (item.get_closest_marker("slurm") or _starts(item.module))  # type: ignore[attr-defined]


@functools.cache
def _starts(module: ModuleType) -> bool:
    """Return whether a module of tests, or one that it imports from, starts processes or imports torch."""
    names = {module.__name__}
    for value in vars(module).values():
        names.add(value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or "")
    if any(name == starter or name.startswith(f"{starter}.") for name in names for starter in STARTERS):
        return True
    others = [sys.modules[name] for name in names - {module.__name__} if name in sys.modules]
    return any(_starts(other) for other in others if _is_of_tests(other))


def _is_of_tests(module: ModuleType) -> bool:
    """Return whether a module is one of these folders, whatever its name: `.shell` is not "tests.run.shell"."""
    return Path(getattr(module, "__file__", None) or os.devnull).is_relative_to(HERE)
