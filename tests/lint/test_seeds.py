"""Whole scripts are silent as they stand, and one mistake in them is found at its line, with its repair."""

import pytest
from tests.lint.linting import texts
from tests.lint.seeding import BEFORE, FILES, given, seeds

from echelon.lint import table

SEEDS = seeds()


@pytest.mark.parametrize("name", FILES)
def test_script_without_a_mistake_is_silent(name: str) -> None:
    """Nothing is said of the scripts into which the mistakes are put."""
    linted = texts(given(name), machine=FILES[name].get("machine", ""), today=BEFORE)
    assert [(each.path, each.line, each.code, each.message) for each in linted.findings] == []


def test_every_rule_has_a_seed() -> None:
    """At least 100 mistakes, and at least one for each rule."""
    assert len(SEEDS) >= 100
    assert {seed.code for seed in SEEDS} == set(table.CODES)


def test_score() -> None:
    """At least 95 % are found at their line, with a repair."""
    missed = [(seed.name, seed.place, seed.found()) for seed in SEEDS if not seed.is_found()]
    assert len(missed) <= 0.05 * len(SEEDS), missed
