"""Collect what lookouts see beside a run: faulty nodes, and how the devices are used; and who judges it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from echelon.errors import EchelonError
from echelon.launch.crew import AgentConnection
from echelon.launch.failure import NEVER
from echelon.launch.run_directory import RunDirectory
from echelon.node.channel import Message

if TYPE_CHECKING:
    from echelon.node.survey.nouns import Survey


Load = dict[str, list[dict[str, Any]]]  # node → the load of each of its devices so far
Host = dict[str, dict[str, Any]]
"""Node → its cores, memory and network at last, and `devices` whose load no driver tells."""
MOST_LINES = 5
LATE_SECONDS = 10.0  # after the first answer: later answers are not expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What to survey beside a run, and the function that judges the answers."""

    asked: Mapping[str, Any]
    """The request of a survey."""
    judge: Callable[[Sequence[Survey]], Sequence[NodeFinding]]
    """Return the findings to report, worst first."""


class Lookouts:
    """Collect the lookouts' reports of a run; a Lookouts without a Look does nothing, and none stops the run."""

    def __init__(self, look: Look | None, directory: RunDirectory, num_nodes: int, say: Callable[[str], None]) -> None:
        self._look, self._directory, self._num_nodes, self._say = look, directory, num_nodes, say
        self._surveys: dict[str, Survey] = {}
        self._is_judged = False
        self._first = NEVER
        self.load: Load = {}
        self.host: Host = {}

    def hear(self, member: AgentConnection, message: Message) -> None:
        """Record a node's survey or its devices' load; judge once all nodes have answered."""
        node = member.placement.node
        if message["kind"] == "survey":
            self._first = min(self._first, time.monotonic())
            from echelon.node.survey.nouns import answered

            survey = answered(node, message["survey"])
            self._surveys[node] = survey._replace(ahead_seconds=member.clock_offset)
            if len(self._surveys) == self._num_nodes:
                self._judge()
        elif message["kind"] == "load":
            if message["devices"]:
                self.load[node] = list(message["devices"])
            self.host[node] = dict(message["host"])

    def close(self) -> None:
        """At the end of the run, judge surveys also where nodes have not answered; a run may be too short to tell."""
        if time.monotonic() - self._first >= LATE_SECONDS:
            self._judge()

    def _judge(self) -> None:
        if self._look is None or self._is_judged or not self._surveys:
            return
        self._is_judged = True
        try:
            findings = self._look.judge(list(self._surveys.values()))
        except EchelonError as error:  # the machine's file was changed after the start
            self._say(f"check: echelon cannot judge the nodes: {error.message}")
            return
        for seen in findings:
            self._directory.event("finding", **seen.fields)
        for seen in findings[:MOST_LINES]:
            self._say(f"check: {seen.line}")
        if len(findings) > MOST_LINES:
            self._say(f"check: and {len(findings) - MOST_LINES} more (events.jsonl); echelon check shows them")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFinding:
    """A finding about nodes."""

    line: str
    fields: Mapping[str, Any]
    """The same finding for programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """The functions that see a run from outside."""

    judge: Callable[[dict[str, Any]], NodeFinding | None] = lambda _: None
    """Take a line of samples.jsonl; return what a person should hear now."""
    rest: Callable[[], Sequence[NodeFinding]] = tuple
    """Return at the end what a person should hear and has not heard yet."""
    sum_up: Callable[[str], str] = lambda _: ""
    """Return the words about a run directory for the last line of the run; empty: nothing worth a word."""


NOBODY = Observer()
