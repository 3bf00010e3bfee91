"""What judges the samples of a run while it goes on, and sums it up at its end; a room beside this one gives both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from echelon.launch.seen import Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """Two functions that see a run from outside."""

    judge: Callable[[dict[str, Any]], Seen | None] = lambda _: None
    """Take a line of samples.jsonl; return what a person should hear now."""
    sum_up: Callable[[str], str] = lambda _: ""
    """Return the words about a run directory for the last line of the run; empty: nothing worth a word."""


NOBODY = Observer()
