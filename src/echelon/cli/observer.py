"""Let the room `monitor` see a run of `echelon run`: it says facts aloud, and sums the run up at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from echelon.errors import UsageError

if TYPE_CHECKING:
    from echelon.launch.observer import Observer
    from echelon.launch.seen import Seen


def observer() -> Observer:
    """Return the functions that a supervisor calls; they import what they need when there is something to judge."""
    from echelon.launch.observer import Observer

    return Observer(judge=_judge(), sum_up=_sum_up)


def _judge() -> Callable[[dict[str, Any]], Seen | None]:
    looks: list[Callable[[dict[str, Any]], Any]] = []

    def judge(line: dict[str, Any]) -> Seen | None:
        if not {"measures", "loss", "load"} & line.keys():
            return None
        if not looks:
            from echelon.monitor.facts import Facts

            looks.append(Facts().look)
        fact = looks[0](line)
        if fact is None:
            return None
        from echelon.launch.seen import Seen

        return Seen(line=fact.line, fields={"fact": fact.kind, "line": fact.line, **fact.evidence})

    return judge


def _sum_up(path: str) -> str:
    from echelon.monitor import account, recorded, summary

    try:
        return summary.of_run(account.of_run(recorded.read(path)))
    except UsageError:
        return ""  # the disk is full: what the run said itself still counts
