"""Let the room `monitor` see a run of `echelon run`: it says facts aloud, and sums the run up at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from echelon.errors import UsageError

if TYPE_CHECKING:
    from echelon.launch.observer import Observer
    from echelon.launch.seen import Seen
    from echelon.monitor.fact import Fact
    from echelon.monitor.facts import Facts


def observer(is_unshared: Callable[[], bool]) -> Observer:
    """Return the functions that a supervisor calls; they import what they need when there is something to judge.

    `is_unshared` says whether the script is one for a single device that is not scaled.
    """
    from echelon.launch.observer import Observer

    judge = _Judge(is_unshared)
    return Observer(judge=judge.look, rest=judge.rest, sum_up=_sum_up)


class _Judge:
    """The facts of a run."""

    def __init__(self, is_unshared: Callable[[], bool]) -> None:
        self._is_unshared = is_unshared
        self._facts: Facts | None = None

    def look(self, line: dict[str, Any]) -> Seen | None:
        """Take a line of samples.jsonl; return what is to be said now."""
        if not {"measures", "loss", "load", "host"} & line.keys():
            return None
        if self._facts is None:
            from echelon.monitor.facts import Facts

            self._facts = Facts(self._is_unshared)
        fact = self._facts.look(line)
        return _seen(fact) if fact is not None else None

    def rest(self) -> list[Seen]:
        """Return what was not said yet."""
        return [_seen(fact) for fact in self._facts.rest()] if self._facts is not None else []


def _seen(fact: Fact) -> Seen:
    from echelon.launch.seen import Seen

    return Seen(line=fact.line, fields={"fact": fact.kind, "line": fact.line, **fact.evidence})


def _sum_up(path: str) -> str:
    from echelon.monitor import account, recorded, summary

    try:
        return summary.of_run(account.of_run(recorded.read(path)))
    except UsageError:
        return ""  # the disk is full: what the run said itself still counts
