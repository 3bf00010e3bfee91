"""Planted causes of slowness are named with their rank and line, and of healthy trainings nothing is said."""

from pathlib import Path

import pytest
from tests.monitor import causes
from tests.monitor.causes import CAUSES, DDP, HEALTHY, OF_DDP, PLAIN, Cause
from tests.tiers import has

CHEAP = ("sleep", "collections of all")
"""What other programs on the cores do not hide; `python -m benchmarks.causes` is for a quiet machine."""


@pytest.mark.parametrize("kind", [DDP, pytest.param(PLAIN, marks=pytest.mark.tier("all"))])
@pytest.mark.parametrize(
    "cause", [cause for cause in CAUSES if has("all") or cause.name in CHEAP], ids=lambda cause: cause.name
)
def test_planted_cause_is_named(tmp_path: Path, cause: Cause, kind: str) -> None:
    told = causes.told(cause, kind, tmp_path)
    assert causes.verdict(cause, kind, told) == "named", told


@pytest.mark.tier("all")
@pytest.mark.parametrize("cause", OF_DDP, ids=lambda cause: cause.name)
def test_cause_in_the_loop_of_a_script_is_named(tmp_path: Path, cause: Cause) -> None:
    told = causes.told(cause, DDP, tmp_path)
    assert causes.verdict(cause, DDP, told) == "named", told


@pytest.mark.tier("all")
@pytest.mark.parametrize("kind", [PLAIN, DDP])
@pytest.mark.parametrize("cause", HEALTHY, ids=lambda cause: cause.name)
def test_healthy_training_gets_no_word(tmp_path: Path, cause: Cause, kind: str) -> None:
    told = causes.told(cause, kind, tmp_path)
    assert causes.verdict(cause, kind, told) == "silent", told
