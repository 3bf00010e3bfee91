"""Which cases of long lists are tested: some of them, or all with ECHELON_ALL_RANKS=1, which takes hours."""

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

Case = TypeVar("Case")
IS_FULL = bool(os.environ.get("ECHELON_ALL_RANKS"))
only_in_full = pytest.mark.skipif(not IS_FULL, reason="tested with ECHELON_ALL_RANKS=1")
"""Marks a test of something that another test also shows in another way."""


def some(cases: Sequence[Case], every: int, first: int = 0) -> Sequence[Case]:
    """Return each of `every` cases from this one on, or all cases."""
    return cases if IS_FULL else cases[first::every]
