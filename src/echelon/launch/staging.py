"""Bring data and software to the own disks of all nodes before a run: `--stage-data` and `--stage-env`."""

from __future__ import annotations

import os
import selectors
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from echelon.errors import RunError
from echelon.launch import package, staged_source
from echelon.launch.agents import Agents
from echelon.launch.crew import AgentConnection, AgentConnections, listen
from echelon.launch.run_directory import shared_folder
from echelon.launch.start import own_addresses
from echelon.node import staging as on_node
from echelon.node.staged_copy import new_digest
from echelon.scheduler import members
from echelon.units import counted, duration, size

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence

    from echelon.host import Host
    from echelon.launch.staged_source import Manifest
    from echelon.node.channel import Message
    from echelon.spec import Plan, Staged

GATHER_SECONDS = 120.0
END_SECONDS = 20.0
SPARE_BYTES = 64 << 20
"""What stays free on a node's disk."""
MOST_COMPARED = 200_000
"""With more entries than this, all are sent again after a change."""
_TELL_SECONDS = 5.0


@dataclass
class _Node:
    """What a node has told."""

    member: AgentConnection
    port: int
    items: dict[str, dict[str, object]]
    is_ready: bool = False
    answer: str | None = None
    """Why the staging failed on this node; empty: it did not; None: it is under way."""

    @property
    def name(self) -> str:
        return self.member.placement.node

    @property
    def addresses(self) -> list[str]:
        return list(dict.fromkeys([self.member.address, self.name]))


@dataclass
class StagingRoot:
    """The process that reads the shared disk, and talks to a stager on each node."""

    secret: bytes
    num_nodes: int
    say: Callable[[str], None]
    nodes: dict[int, _Node] = field(default_factory=dict)
    manifest: str | None = None
    problem: str = ""
    num_left: int = 0
    num_staying: int = 0

    def __post_init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.listener = listen("")
        self.crew = AgentConnections(
            self.listener, self.secret, self.selector, on_join=lambda _member: None, on_message=self._hear,
            on_loss=self._lose, on_refusal=self.note,
        )  # fmt: skip

    def note(self, problem: str) -> None:
        self.problem = self.problem or problem

    def _lose(self, member: AgentConnection, why: str) -> None:
        self.note(f"{member.placement.node}: {why}")

    def _hear(self, member: AgentConnection, message: Message) -> None:
        index, kind = member.placement.agent_index, message["kind"]
        if kind == "standing":
            self.nodes[index] = _Node(member, message["port"], message["items"])
        elif kind == "manifest":
            self.manifest = message["manifest"]
        elif kind == "ready":
            self.nodes[index].is_ready = True
        elif kind == "staged":
            self.nodes[index].answer = message["why_not"]
        elif kind == "left":
            self.num_left += 1
            self.num_staying += message["stays"]

    def wait(self, is_done: Callable[[], bool], what: str, seconds: float = float("inf")) -> None:
        """Hear the nodes until something is so; raise RunError if it cannot be, or takes too long."""
        deadline = time.monotonic() + seconds
        while not is_done():
            if self.problem:
                raise RunError(f"the nodes' disks could not be filled: {self.problem}")
            if time.monotonic() > deadline:
                raise RunError(f"the nodes' disks could not be filled: {what} took more than {duration(seconds)}")
            for key, _ in self.selector.select(1.0):
                if key.fd in self.selector.get_map():
                    key.data()

    def gather(self, items: Sequence[Staged]) -> None:
        """Wait for all nodes; raise RunError with the first reason against a copy on one of them."""
        self.wait(lambda: len(self.nodes) == self.num_nodes, "the start of a process on each node", GATHER_SECONDS)
        for node in self.nodes.values():
            for item in items:
                why_not = node.items[item.key]["why_not"]
                if why_not:
                    raise RunError(
                        f"{item.source} cannot be staged on {node.name}: {why_not}",
                        hint="ECHELON_STAGE=FOLDER names another folder of the nodes, SRC=DST another path",
                    )

    def stage(self, item: Staged, listing: Manifest) -> str:
        """Bring one source to all nodes; return how it went."""
        began, digest = time.monotonic(), listing.digest
        lacking = [node for node in self.nodes.values() if node.items[item.key]["digest"] != digest]
        copies = {str(node.items[item.key]["digest"]) for node in lacking}
        wanted, removed = dict(listing.entries), list[str]()
        sent, check = 0, ""
        is_part = len(copies) == 1 and "" not in copies and len(wanted) <= MOST_COMPARED
        if lacking and item.is_shard:
            self._copy(item, listing, lacking)
        elif lacking:
            if is_part:
                wanted, removed = self._changed(item.key, lacking[0], wanted)
            self._refuse_full(item, wanted, lacking)
            sent, check = self._send(item, listing, wanted, removed, lacking, keeps=is_part)
        for node in self.nodes.values():
            node.answer = None
            self.crew.tell(node.member, "finish", key=item.key, name=item.name, digest=check, manifest=digest)
        self.wait(lambda: all(node.answer is not None for node in self.nodes.values()), "unpacking")
        bad = {node.name: node.answer for node in self.nodes.values() if node.answer}
        if bad:
            name, why = next(iter(bad.items()))
            others = f" and {counted(len(bad) - 1, 'other node')}" if len(bad) > 1 else ""
            raise RunError(f"{item.source} could not be staged on {name}{others}: {why}")
        return _how(item, listing, sent, len(lacking), time.monotonic() - began, is_part=is_part)

    def _changed(
        self, key: str, node: _Node, entries: dict[str, staged_source.Entry]
    ) -> tuple[dict[str, staged_source.Entry], list[str]]:
        """Return the entries that a node lacks, with all folders, and the paths that are to be removed there."""
        self.manifest = None
        self.crew.tell(node.member, "tell", key=key)
        self.wait(lambda: self.manifest is not None, "comparing")
        old = staged_source.parse(self.manifest or "")
        wanted = {path: entry for path, entry in entries.items() if entry.kind == "d" or old.get(path) != entry}
        gone = [path for path, entry in old.items() if path not in entries or entries[path].kind != entry.kind]
        return wanted, gone

    def _refuse_full(self, item: Staged, wanted: dict[str, staged_source.Entry], nodes: list[_Node]) -> None:
        needs = staged_source.size_of(wanted) + SPARE_BYTES
        for node in nodes:
            free = int(str(node.items[item.key]["free_bytes"]))
            if free < needs:
                raise RunError(
                    f"{item.source} takes {size(needs - SPARE_BYTES)}, but {node.name} has {size(free)} free in "
                    f"{os.path.dirname(item.folder)}",
                    hint="ECHELON_STAGE=FOLDER names another folder of the nodes",
                )

    def _copy(self, item: Staged, listing: Manifest, nodes: list[_Node]) -> None:
        """Let each node copy the shards that its own ranks read; a shard that no rank reads by its number is linked."""
        inner = [(path.partition(os.sep)[2], entry.kind) for path, entry in list(listing.entries.items())[1:]]
        numbers = {path: number for number, path in enumerate(path for path, kind in inner if kind == "f")}
        count = item.ranks_per_node
        for node in nodes:
            place = node.member.placement.agent_index
            entries = [
                (path, kind, kind == "f" and numbers[path] % (self.num_nodes * count) // count == place)
                for path, kind in inner
            ]
            self.crew.tell(
                node.member, "copy", key=item.key, source=item.source, name=item.name, entries=entries,
                manifest=listing.text,
            )  # fmt: skip

    def _send(
        self,
        item: Staged,
        listing: Manifest,
        wanted: dict[str, staged_source.Entry],
        removed: list[str],
        nodes: list[_Node],
        *,
        keeps: bool,
    ) -> tuple[int, str]:
        """Send a stream down a tree of nodes with two children each; return its bytes and its digest."""
        for number in reversed(range(len(nodes))):  # a child waits before its parent calls it
            node = nodes[number]
            node.is_ready = False
            children = [(child.addresses, child.port) for child in nodes[2 * number + 1 : 2 * number + 3]]
            self.crew.tell(node.member, "receive", key=item.key, children=children, removed=removed, keeps=keeps)
        rewrite = staged_source.moved(item.moved_from, item.target) if item.moved_from else None
        total = sum(entry.size for entry in wanted.values())
        self.wait(lambda: nodes[0].is_ready, "connecting", GATHER_SECONDS)
        with on_node.call(nodes[0].addresses, nodes[0].port, self.secret) as sock:
            return self._pour(sock, item, staged_source.stream(listing, wanted, rewrite), total)

    def _pour(self, sock: socket.socket, item: Staged, pieces: Iterator[bytes], total: int) -> tuple[int, str]:
        digest, sent = new_digest(), 0
        began = told = time.monotonic()
        try:
            for piece in pieces:
                sock.sendall(piece)
                digest.update(piece)
                sent += len(piece)
                if time.monotonic() - told > _TELL_SECONDS:
                    told = time.monotonic()
                    rate = sent / (told - began)
                    left = f", {duration(max(total - sent, 0) / rate)} left" if total > sent else ""
                    self.say(f"staging {item.name}: {size(sent)} of {size(total)}, {size(int(rate))}/s{left}")
        except OSError as error:
            self.note(f"the first node took no more: {error}")
        return sent, digest.hexdigest()

    def end(self) -> None:
        """Let the nodes remove what they have, or keep it for the next run of their pool."""
        self.problem = ""
        self.crew.tell_all("end")
        deadline = time.monotonic() + END_SECONDS
        while self.crew.members and self.num_left < len(self.crew.members) and time.monotonic() < deadline:
            for key, _ in self.selector.select(0.2):
                if key.fd in self.selector.get_map():
                    key.data()
        self.crew.close()
        self.selector.close()


def _how(item: Staged, listing: Manifest, sent: int, num_nodes: int, seconds: float, *, is_part: bool) -> str:
    where = "this machine" if num_nodes < 2 else counted(num_nodes, "node")
    if not num_nodes:
        return f"{item.name} is staged already: {item.target}"
    if item.is_shard:
        shards = counted(listing.num_files, "shard")
        return f"{shards} of {item.name} shared by {where} in {duration(seconds)}: {item.target}"
    amount = "what changed" if is_part else counted(listing.num_files, "file")
    return f"{item.name} staged on {where}: {amount}, {size(sent)} in {duration(seconds)}: {item.target}"


@contextmanager
def staged(plan: Plan, host: Host, say: Callable[[str], None]) -> Iterator[None]:
    """Bring what the plan stages to its nodes, as long as the run lasts."""
    listings = {item.key: staged_source.read(item.source, item.target) for item in plan.staged}
    secret = os.urandom(32)
    with shared_folder("stage", "the nodes find their instructions there") as directory:
        root = StagingRoot(secret, plan.num_nodes + plan.num_spares, say)
        processes = _start(plan, host, root, directory)
        try:
            root.gather(plan.staged)
            for item in plan.staged:
                say(root.stage(item, listings[item.key]))
        except BaseException:
            _end(root, processes)
            raise
    try:
        yield
    finally:
        _end(root, processes)


def _start(plan: Plan, host: Host, root: StagingRoot, directory: str) -> list[Agents]:
    package.write(os.path.join(directory, "node.pyz"))
    addresses = [(name, root.listener.getsockname()[1]) for name in own_addresses()]
    folder = os.path.dirname(plan.staged[0].folder)
    links = {item.key: item.link for item in plan.staged}
    on_node.write(directory, on_node.StageOrder(addresses, folder, plan.run_id, links), root.secret)
    words = (sys.executable, "-I", "-S", os.path.join(directory, "node.pyz"), "stage", directory)
    scheduler = members.of(plan.where)
    processes = []
    for start in scheduler.starts(replace(plan, launch="warm"), words, host.environ):

        def ended(code: int, said: str, name: str = start.name) -> None:
            if code:
                root.note(f"{name} ended with exit code {code}: {said.strip()}")

        process = Agents.start(start, host, on_end=ended, on_said=lambda _said: None)
        process.watch(root.selector)
        processes.append(process)
    return processes


def _end(root: StagingRoot, processes: list[Agents]) -> None:
    root.end()
    deadline = time.monotonic() + END_SECONDS
    while not root.num_staying and not all(process.has_ended() for process in processes):
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)
