"""The reason of a decision."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A decision: its name, the chosen value, and the reason."""

    what: str
    value: str
    why: str
