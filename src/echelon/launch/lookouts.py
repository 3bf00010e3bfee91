"""Collect what lookouts see beside a run: faulty nodes, and devices that stay idle."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from echelon.environment.hostlist import compress
from echelon.errors import EchelonError
from echelon.launch.crew import Member
from echelon.launch.failure import NEVER
from echelon.launch.run_directory import RunDirectory
from echelon.node.channel import Message

if TYPE_CHECKING:
    from echelon.node.survey.nouns import Survey

Load = dict[str, list[dict[str, Any]]]
"""Node → the load of each of its devices so far."""
MOST_LINES = 5
LATE_SECONDS = 10.0  # after the first answer: later answers are not expected
LEAST_LOOKS = 6  # one look a minute: imports may take several minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A finding about nodes."""

    line: str
    fields: Mapping[str, Any]
    """The same finding for programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What to survey beside a run, and the function that judges the answers."""

    asked: Mapping[str, Any]
    """The request of a survey."""
    judge: Callable[[Sequence[Survey]], Sequence[Seen]]
    """Return the findings to report, worst first."""


class Lookouts:
    """Collect the lookouts' reports of a run; a Lookouts without a Look does nothing, and none stops the run."""

    def __init__(self, look: Look | None, directory: RunDirectory, num_nodes: int, say: Callable[[str], None]) -> None:
        self._look = look
        self._directory = directory
        self._num_nodes = num_nodes
        self._say = say
        self._surveys: dict[str, Survey] = {}
        self._is_judged = False
        self._first = NEVER
        self.load: Load = {}

    def hear(self, member: Member, message: Message) -> None:
        """Record a node's survey or its devices' load; judge once all nodes have answered."""
        node = member.placement.node
        if message["kind"] == "survey":
            self._first = min(self._first, time.monotonic())
            self._surveys[node] = _survey(message)._replace(node=node, ahead_seconds=member.clock_offset)
            if len(self._surveys) == self._num_nodes:
                self._judge()
        elif message["kind"] == "load":
            self.load[node] = list(message["devices"])

    def close(self) -> None:
        """At the end of the run, judge late surveys and report idle devices; skip runs that were too short to tell."""
        if time.monotonic() - self._first >= LATE_SECONDS:
            self._judge()
        idle = {
            node: [row["device"] for row in rows if row["most"] == 0 and row["looks"] >= LEAST_LOOKS]
            for node, rows in self.load.items()
        }
        count = sum(len(devices) for devices in idle.values())
        if count:
            total = sum(len(rows) for rows in self.load.values())
            remedy = "ask for fewer devices, or start a rank for each device"
            self._say(f"note: echelon never saw {count} of {total} devices busy: {_listed(idle)}; {remedy}")

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


def _survey(message: Message) -> Survey:
    from echelon.node.survey.nouns import Survey, rebuild

    try:
        survey: Survey = rebuild(Survey, message["survey"])
    except ValueError as error:
        survey = Survey("", silent={"node": f"gave an unexpected answer: {error}"})
    return survey


def _listed(idle: Mapping[str, Sequence[int]]) -> str:
    """List devices by node; nodes with equal devices share an entry."""
    from echelon.topology.cpu_lists import cpu_list

    nodes: dict[str, list[str]] = {}
    for node, devices in idle.items():
        if devices:
            nodes.setdefault(cpu_list(devices), []).append(node)
    return "; ".join(f"{devices} on {compress(names)}" for devices, names in nodes.items())
