"""The functions that judge the samples of a run and sum it up; a room beside this one gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from echelon.launch.seen import Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """The functions that see a run from outside."""

    judge: Callable[[dict[str, Any]], Seen | None] = lambda _: None
    """Take a line of samples.jsonl; return what a person should hear now."""
    rest: Callable[[], Sequence[Seen]] = tuple
    """Return at the end what a person should hear and has not heard yet."""
    sum_up: Callable[[str], str] = lambda _: ""
    """Return the words about a run directory for the last line of the run; empty: nothing worth a word."""


NOBODY = Observer()
