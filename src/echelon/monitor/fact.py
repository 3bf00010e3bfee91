"""What a person should hear of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A line for a person, and its evidence for programs."""

    kind: str
    line: str
    evidence: dict[str, Any]
