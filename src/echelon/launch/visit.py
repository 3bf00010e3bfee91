"""Survey every node of an allocation with one step, and let the nodes connect to each other."""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from echelon.errors import RunError
from echelon.host import Host
from echelon.launch import package
from echelon.launch.crew import AgentConnection, AgentConnections, listen
from echelon.launch.run_directory import shared_folder
from echelon.launch.start import allow_many_files, own_addresses
from echelon.node.channel import Message
from echelon.node.survey import visit
from echelon.node.survey.nouns import Survey, answered
from echelon.node.survey.take import SurveyRequest

if TYPE_CHECKING:
    from echelon.host.host import Process

GATHER_SECONDS = 60.0
LATE_SECONDS = 5.0  # after half of the nodes have answered, the others get a part's deadline and this much more
MEET_SECONDS = 8.0
END_SECONDS = 10.0
HUNG_SECONDS = 2.0  # how long the step may take to end if nodes are missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The nodes to survey, and the step that reaches them."""

    nodes: tuple[str, ...]
    step: tuple[str, ...]
    """The command that starts another one on each node."""
    environ: Mapping[str, str]
    asked: SurveyRequest
    meets: bool
    """Whether nodes try to reach each other."""
    gather_seconds: float = GATHER_SECONDS


def survey_nodes(asked_round: Round, host: Host) -> list[Survey]:
    """Return one survey for each node, in their order; a node without an answer has an empty survey.

    Raise RunError if no node answered, and UsageError if the shared folder cannot be written.
    """
    with shared_folder("check", "the nodes find their instructions there") as directory:
        archive = os.path.join(directory, "node.pyz")
        package.write(archive)
        listener = listen("")
        port = listener.getsockname()[1]
        spec = visit.SurveySpec(
            addresses=[(name, port) for name in own_addresses()],
            asked=asked_round.asked._asdict(),
            connect_seconds=20.0,
            word=os.urandom(8).hex(),
        )
        secret = os.urandom(32)
        visit.write(directory, spec, secret)
        command = (*asked_round.step, sys.executable, "-I", "-S", archive, "survey", directory)
        gathering = NodeAnswers(asked_round, listener, secret)
        process = host.start(command, environ=asked_round.environ)
        try:
            allow_many_files()  # the step has started with the user's limit
            gathering.follow(process)
            gathering.run()
        finally:
            gathering.close()
            _end(process, seconds=END_SECONDS if gathering.is_complete else HUNG_SECONDS)
    return gathering.surveys()


def _end(process: Process, *, seconds: float) -> None:
    """Wait for the end of the step, or kill it: a hanging node would keep it for ever."""
    for stop in (None, process.terminate, process.kill):
        if stop is not None:
            stop()
        deadline = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        if process.poll() is not None:
            break
    if process.stdout is not None:
        process.stdout.close()


@dataclass(slots=True)
class _Answer:
    """The answer of one node."""

    index: int
    survey: Survey
    port: int
    unreached: dict[str, str] = field(default_factory=dict)
    has_visited: bool = False


class NodeAnswers:
    """Collect the answers of the nodes."""

    def __init__(self, asked_round: Round, listener: socket.socket, secret: bytes) -> None:
        self._round = asked_round
        self._answers: dict[str, _Answer] = {}
        self._refusals: list[str] = []
        self._said = bytearray()
        self._process: Process | None = None
        self._is_over = False
        self._is_meeting = False
        self._deadline = time.monotonic() + asked_round.gather_seconds
        self._selector = selectors.DefaultSelector()
        self._crew = AgentConnections(
            listener,
            secret,
            self._selector,
            on_join=lambda _member: None,
            on_message=self._hear,
            on_loss=self._lose,
            on_refusal=self._refusals.append,
        )

    def follow(self, process: Process) -> None:
        """Watch the step: its end, and its output."""
        self._process = process
        if process.stdout is not None:
            os.set_blocking(process.stdout.fileno(), False)
            self._selector.register(process.stdout, selectors.EVENT_READ, self._hear_step)

    def run(self) -> None:
        """Collect answers until all have come, or time is up."""
        while not self._is_over:
            wait = self._deadline - time.monotonic()
            for key, _ in self._selector.select(max(0.0, min(wait, 1.0))):
                if key.fd in self._selector.get_map():
                    key.data()
            if time.monotonic() >= self._deadline:
                self._advance(is_late=True)

    def close(self) -> None:
        self._crew.tell_all("end")
        self._crew.flush(seconds=2.0)
        self._crew.close()
        self._selector.close()

    @property
    def is_complete(self) -> bool:
        return all(name in self._answers for name in self._round.nodes)

    def surveys(self) -> list[Survey]:
        """Return the survey of each requested node, and of any other node that joined."""
        if not self._answers:
            said = bytes(self._said).decode("utf-8", "replace").strip() or "; ".join(self._refusals)
            raise RunError("no node answered" + (f": {said}" if said else " in time"), hint=_hint(said))
        names = list(dict.fromkeys([*self._round.nodes, *self._answers]))
        return [self._survey(name) for name in names]

    def _survey(self, name: str) -> Survey:
        answer = self._answers.get(name)
        if answer is None:
            return Survey(name, silent={"node": "did not answer"})
        return answer.survey._replace(unreached=answer.unreached)

    def _hear(self, member: AgentConnection, message: Message) -> None:
        if message["kind"] == "survey":
            named = answered(member.placement.node, message["survey"])._replace(ahead_seconds=member.clock_offset)
            self._answers[member.placement.node] = _Answer(member.placement.agent_index, named, int(message["port"]))
            if len(self._answers) * 2 >= len(self._round.nodes):
                late_seconds = self._round.asked.part_seconds + LATE_SECONDS
                self._deadline = min(self._deadline, time.monotonic() + late_seconds)
        elif message["kind"] == "visited" and member.placement.node in self._answers:
            answer = self._answers[member.placement.node]
            answer.unreached, answer.has_visited = dict(message["unreached"]), True
        self._advance(is_late=False)

    def _advance(self, *, is_late: bool) -> None:
        """Start the meeting once all nodes have answered, and finish once all have met."""
        if self._is_meeting:
            self._is_over = is_late or all(answer.has_visited for answer in self._answers.values())
        elif is_late or len(self._answers) >= len(self._round.nodes):
            self._is_over = not self._round.meets or len(self._answers) < 2
            if not self._is_over:
                self._meet()

    def _meet(self) -> None:
        """Let each node that answered connect to some of the others, by name."""
        self._is_meeting = True
        self._deadline = time.monotonic() + MEET_SECONDS
        ordered = sorted(self._answers.items(), key=lambda item: item[1].index)
        nodes = [(name, name, answer.port) for name, answer in ordered]
        place = {name: index for index, (name, _) in enumerate(ordered)}
        for member in self._crew:
            if member.placement.node in place:
                doors = visit.doors_of(nodes, place[member.placement.node])
                self._crew.tell(member, "visit", doors=doors, seconds=visit.CONNECT_SECONDS)

    def _lose(self, member: AgentConnection, _why: str) -> None:
        answer = self._answers.get(member.placement.node)
        if answer is not None:
            answer.has_visited = True
        if not self._crew.members and (self._process is None or self._process.poll() is not None):
            self._is_over = True
        else:
            self._advance(is_late=False)

    def _hear_step(self) -> None:
        stream = self._process.stdout if self._process is not None else None
        data = stream.read() if stream is not None else b""
        if data:
            self._said += data
            del self._said[: -(1 << 16)]
        elif data == b"" and stream is not None:
            self._selector.unregister(stream)
            self._is_over = not self._crew.members
            self._deadline = min(self._deadline, time.monotonic() + 1.0)


def _hint(said: str) -> str:
    if "can't open file" in said or "No such file" in said:
        return "cd to a folder that every node sees: the nodes find their instructions there"
    return ""
