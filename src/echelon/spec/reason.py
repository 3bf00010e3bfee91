"""Why something was decided."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One decision: its name, what was chosen, and why."""

    what: str
    value: str
    why: str
