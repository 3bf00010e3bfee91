"""The agents of a run, as the supervisor sees them: which have joined, which are silent, which are gone."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from echelon.errors import RunError
from echelon.launch.layout import AgentPlacement, AgentShare, seat_of
from echelon.launch.run_directory import RunDirectory
from echelon.node import PROTOCOL, private, processes
from echelon.node.channel import MAX_LINE_BYTES, Channel, Closed, Message, encode, keep_alive
from echelon.node.secret import nonce, proof, proves

STRANGER_LINE_BYTES = 1 << 16  # the most bytes that are kept of a peer without a proof
STRANGER_SECONDS = 30.0  # the longest time that a peer without a proof may be silent


@dataclass(slots=True)
class AgentConnection:
    """An agent that has proved that it holds the run's secret."""

    channel: Channel
    placement: AgentPlacement
    clock_offset: float
    address: str
    pid: int = 0
    why_exec: str = ""
    share: AgentShare | None = None
    ports: list[int] = field(default_factory=list)
    store_port: int = 0
    """The port of the store for ranks; 0: this agent serves none."""
    is_stopped: bool = False
    heard_at: float = field(default_factory=time.monotonic)
    """When anything came from this agent last."""
    frozen: str = ""
    """What is known of an agent that fell silent; empty: it did not."""


class AgentConnections:
    """Accept agents, and pass their messages on."""

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        selector: selectors.BaseSelector,
        *,
        on_join: Callable[[AgentConnection], None],
        on_message: Callable[[AgentConnection, Message], None],
        on_loss: Callable[[AgentConnection, str], None],
        on_refusal: Callable[[str], None],
        names: Sequence[str] = (),
    ) -> None:
        self._names = names
        """The nodes' names by the numbers of their agents; empty: agents know them."""
        self._secret, self._selector, self._on_join = secret, selector, on_join
        self._on_message, self._on_loss, self._on_refusal = on_message, on_loss, on_refusal
        self.members: dict[int, AgentConnection] = {}
        self._strangers: dict[Channel, float] = {}
        self.is_complete = False
        """Whether all agents have joined; later ones are refused, except awaited ones."""
        self.awaited: set[int] = set()
        """The numbers of lost agents that were started again."""
        self._listener = listener
        selector.register(listener, selectors.EVENT_READ, self._accept)

    def __iter__(self) -> Iterator[AgentConnection]:
        return iter([self.members[index] for index in sorted(self.members)])

    @property
    def with_ranks(self) -> list[AgentConnection]:
        """The agents that have ranks; the others are spares."""
        return [member for member in self if member.share is not None]

    def tell_all(self, kind: str, **fields: object) -> None:
        """Send one message to all agents; it is encoded once."""
        line = encode(kind, **fields)
        for member in self:
            member.channel.send_line(line)
            self._flush(member)

    def tell(self, member: AgentConnection, kind: str, **fields: object) -> None:
        """Send a message; queue the part that the socket cannot take yet."""
        member.channel.send(kind, **fields)
        self._flush(member)

    def invite(self, directory: RunDirectory) -> str:
        """Lay the secret down for agents that start again; return why that is impossible, or an empty text."""
        try:
            directory.insist(lambda: private.write_secret(directory.path, self._secret))
        except OSError as error:
            return f"cannot write {directory.file(private.SECRET)}: {error.strerror}"
        return ""

    def dismiss(self, member: AgentConnection) -> None:
        """Dismiss an agent that the run does not need."""
        member.channel.send("end", exit_code=0)
        member.channel.flush()
        del self.members[member.placement.agent_index]
        self._drop(member.channel)

    def _flush(self, member: AgentConnection) -> None:
        if member.channel.has_unsent:
            self._watch_writing(member)

    def _watch_writing(self, member: AgentConnection) -> None:
        def hear_or_flush() -> None:
            member.channel.flush()
            if not member.channel.has_unsent:
                self._selector.modify(member.channel, selectors.EVENT_READ, lambda: self._hear(member))
            self._hear(member)

        if member.channel.socket.fileno() >= 0:
            self._selector.modify(member.channel, selectors.EVENT_READ | selectors.EVENT_WRITE, hear_or_flush)

    def _accept(self) -> None:
        self._drop_silent_strangers()
        try:
            sock, address = self._listener.accept()
        except OSError as error:
            if error.errno == errno.EMFILE and self._strangers:
                self._drop(next(iter(self._strangers)))  # the peer that has been silent for the longest time
            return
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            keep_alive(sock)
        channel = Channel(sock, max_line_bytes=STRANGER_LINE_BYTES)
        challenge = nonce()
        self._strangers[channel] = time.monotonic() + STRANGER_SECONDS
        self._selector.register(
            channel, selectors.EVENT_READ, lambda: self._hear_stranger(channel, challenge, str(address[0]))
        )
        channel.send("challenge", version=PROTOCOL, nonce=challenge, time=time.time())

    def _drop_silent_strangers(self) -> None:
        now = time.monotonic()
        for channel in [channel for channel, deadline in self._strangers.items() if deadline < now]:
            self._drop(channel)

    def _hear_stranger(self, channel: Channel, challenge: str, address: str) -> None:
        try:
            messages = channel.receive()
        except Closed:
            self._drop(channel)
            return
        if not messages:
            return
        hello = messages[0]
        answer = challenge + str(hello.get("nonce"))
        if hello["kind"] != "hello" or not proves(self._secret, "agent", answer, hello.get("proof")):
            self._drop(channel)
            return
        if self._names:
            hello["node"] = self._names[int(hello["agent_index"])]
        why = self._reason_against(hello)
        if why:
            channel.send("refused", why=why)
            self._drop(channel)
            self._on_refusal(why)
            return
        channel.max_line_bytes = MAX_LINE_BYTES
        channel.send("welcome", proof=proof(self._secret, "supervisor", str(hello["nonce"]) + challenge))
        self._join(channel, hello, address)

    def _join(self, channel: Channel, hello: Message, address: str) -> None:
        placement = self._seat(hello)
        offset = _clock_offset(float(hello["asked"]), float(hello["time"]), time.time())
        member = AgentConnection(
            channel, placement, offset, address, pid=int(hello["agent_pid"]), why_exec=str(hello.get("why_exec", ""))
        )
        self.members[placement.agent_index] = member
        self.awaited.discard(placement.agent_index)
        self._strangers.pop(channel, None)
        self._selector.modify(channel, selectors.EVENT_READ, lambda: self._hear(member))
        self._on_join(member)

    def _reason_against(self, hello: Message) -> str:
        node = hello.get("node")
        if hello.get("version") != PROTOCOL:
            return (
                f"the agent on {node} speaks version {hello.get('version')} of the protocol, but this "
                f"supervisor speaks version {PROTOCOL}: install the same echelon on every node"
            )
        if self.is_complete and int(hello["agent_index"]) not in self.awaited:
            return f"the agent on {node} came to a run that already has all its nodes"
        if int(hello["agent_index"]) in self.members:
            return f"two agents have the number {hello['agent_index']}: {node} is the second"
        return ""

    def _seat(self, hello: Message) -> AgentPlacement:
        if int(hello["agent_index"]) >= 0:
            return seat_of(hello)
        free = next(n for n in range(1, len(self.members) + 2) if n not in self.members)  # 0 is the hosting node
        return seat_of({**hello, "agent_index": free, "node_rank": free})

    def _hear(self, member: AgentConnection) -> None:
        if self.members.get(member.placement.agent_index) is not member:
            return
        try:
            messages = member.channel.receive()
        except Closed as error:
            self._lose(member, str(error))
            return
        member.heard_at = time.monotonic()
        for message in messages:
            if message["kind"] != "beat":
                self._on_message(member, message)

    def expel(self, member: AgentConnection, why: str) -> None:
        """Lose an agent that is silent."""
        member.frozen = why
        self._lose(member, why)

    def _lose(self, member: AgentConnection, why: str) -> None:
        self._drop(member.channel)
        del self.members[member.placement.agent_index]
        self._on_loss(member, why)

    def _drop(self, channel: Channel) -> None:
        self._strangers.pop(channel, None)
        self._selector.unregister(channel)
        channel.close()

    def flush(self, *, seconds: float) -> None:
        """Give the last messages time to leave the sockets."""
        deadline = time.monotonic() + seconds
        while any(member.channel.has_unsent for member in self) and time.monotonic() < deadline:
            time.sleep(0.01)
            for member in self:
                member.channel.flush()

    def close(self) -> None:
        self._listener.close()
        for member in self:
            member.channel.close()


def _clock_offset(asked: float, theirs: float, now: float) -> float:
    """Return how far an agent's clock is ahead; its answer is dated to the middle between question and receipt."""
    return theirs - (asked + now) / 2


def listen(address: str, port: int = 0) -> socket.socket:
    """Open the port for agents; peers that do not prove the run's secret get no answer."""
    try:
        listener = socket.create_server((address, port), backlog=4096, reuse_port=False)
    except OSError as error:
        raise RunError(f"echelon cannot listen on {address or '*'}:{port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


SILENT_SECONDS = 8.0  # agents send a beat each second
SILENT_AT_END_SECONDS = 2.5  # in a run that ends anyway, nobody is lost by mistake
LOOK_SECONDS = 0.25  # a thousand agents make a thousand turns of the loop each second
PAUSE_SECONDS = 3.0  # a turn of the supervisor's loop takes at most one second; a longer one was its own pause


class Heartbeat:
    """The time of silence of each agent, without the pauses of the supervisor itself.

    A suspended machine stops the clock too, so its sleep does not count either.
    """

    def __init__(self, crew: AgentConnections, clock: Callable[[], float] = time.monotonic) -> None:
        self._crew = crew
        self._clock = clock
        self._last = self._since = clock()

    def look(self, *, is_ending: bool) -> None:
        """Look at each turn of the supervisor's loop; expel agents that are silent for too long."""
        now = self._clock()
        if now - self._last < LOOK_SECONDS:
            return
        if now - self._last > PAUSE_SECONDS:
            self._since = now
        self._last = now
        limit = SILENT_AT_END_SECONDS if is_ending else SILENT_SECONDS
        for member in list(self._crew):
            silent = now - max(self._since, member.heard_at)
            if silent >= limit:
                self._crew.expel(member, words(member, silent))


def words(member: AgentConnection, seconds: float) -> str:
    """Say which agent is silent, and what the kernel says about it if it runs on this node."""
    node = member.placement.node
    process = processes.read(member.pid) if member.address.startswith("127.") else None
    why = processes.STATES.get(process.state, "") if process is not None else ""
    ranks = sorted(member.share.ranks) if member.share is not None else []
    of_ranks = f"ranks {ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]}" if ranks else "no rank"
    frozen = f": process {member.pid} is {why}" if why else "; the agent or its node is frozen"
    return f"the agent on {node}, which runs {of_ranks}, has been silent for {seconds:.0f} s{frozen}"
