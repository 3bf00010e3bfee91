"""Planted causes of slowness are named with their rank and line, and of healthy trainings nothing is said."""

from pathlib import Path

import pytest
from tests.monitor import causes
from tests.monitor.causes import CAUSES, HEALTHY, Cause
from tests.tiers import has

CHEAP = ("sleep", "collections of all")
"""What other programs on the cores do not hide; `python -m benchmarks.causes` is for a quiet machine."""


@pytest.mark.parametrize(
    "cause", [cause for cause in CAUSES if has("all") or cause.name in CHEAP], ids=lambda cause: cause.name
)
def test_planted_cause_is_named(tmp_path: Path, cause: Cause) -> None:
    told = causes.told(cause, tmp_path)
    assert causes.naming(cause, told), told


@pytest.mark.tier("all")
@pytest.mark.parametrize("cause", HEALTHY, ids=lambda cause: cause.name)
def test_healthy_training_gets_no_word(tmp_path: Path, cause: Cause) -> None:
    told = causes.told(cause, tmp_path)
    assert causes.is_silent(told), told
