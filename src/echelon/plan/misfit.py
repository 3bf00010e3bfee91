"""A request that nothing takes as it is, with what of it could be changed."""

from __future__ import annotations

from dataclasses import dataclass

from echelon.errors import UsageError

Change = tuple[str, int | str]
"""A field of a Request, and another value for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Changes that may make a request acceptable, together; nothing is said before they were tried."""

    changes: tuple[Change, ...]
    label: str = ""
    """For whom, or when, it is a way: "if that is meant"."""
    is_last_resort: bool = False
    """Whether it is told only where no other is accepted."""


def way(label: str = "", /, **changes: int | str) -> Way:
    """Return a way of the fields that are named."""
    return Way(changes=tuple(changes.items()), label=label)


class Misfit(UsageError):
    """A machine would refuse a request. `ways` are tried in their order; a hint names the first that are accepted."""

    def __init__(
        self, message: str, *, ways: tuple[Way, ...] = (), num_shown: int = 1, hint: str = "", details: str = ""
    ) -> None:
        super().__init__(message, hint=hint, details=details)
        self.ways = ways
        self.num_shown = num_shown
