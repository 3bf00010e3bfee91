"""A finding about the nodes of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A finding about nodes."""

    line: str
    fields: Mapping[str, Any]
    """The same finding for programs."""
