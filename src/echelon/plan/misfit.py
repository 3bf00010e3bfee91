"""A request that a machine refuses, with changes that may make it acceptable."""

from __future__ import annotations

from dataclasses import dataclass

from echelon.errors import UsageError

Change = tuple[str, int | str]  # a field of a Request, and a new value for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Changes that together may make a request acceptable; a hint shows them only after a successful trial."""

    changes: tuple[Change, ...]
    label: str = ""
    """The condition for the change: "if that is meant"."""
    is_last_resort: bool = False
    """Whether to show it only if no other change is accepted."""


def way(label: str = "", /, **changes: int | str) -> Alternative:
    return Alternative(changes=tuple(changes.items()), label=label)


class Misfit(UsageError):
    """A refused request. `ways` are tried in order; the hint shows the first ones that are accepted."""

    def __init__(
        self, message: str, *, ways: tuple[Alternative, ...] = (), num_shown: int = 1, hint: str = "", details: str = ""
    ) -> None:
        super().__init__(message, hint=hint, details=details)
        self.ways = ways
        self.num_shown = num_shown
