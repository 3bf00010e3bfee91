"""Many simulated agents on loopback, and a real supervisor: `python -m benchmarks.fleet DIRECTORY NUM_AGENTS PORT`.

With a port this is the simulator; with port 0 the supervisor, which prints the port that it listens on.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import sys
import threading
import time
from dataclasses import replace

from benchmarks.meter import program
from echelon.launch import agents
from echelon.launch.console import Console
from echelon.launch.crew import listen
from echelon.launch.prepare import prepare
from echelon.launch.run_directory import RunDirectory
from echelon.launch.supervisor import Supervisor
from echelon.node import agent_spec
from echelon.node.agent_spec import Placement
from echelon.node.channel import Channel, Closed, encode
from echelon.node.connect import BEAT_SECONDS, connect
from echelon.spec import Command, Job, Plan

RANKS_PER_NODE = 8
CONNECT_SECONDS = 30.0


def supervise(directory: str, num_agents: int) -> None:
    """Be the supervisor of a run whose agents somebody else starts."""
    plan = _plan(directory, num_agents)
    _allow_many_files()
    run_directory = RunDirectory.create(plan)
    listener = listen("127.0.0.1")
    secret = os.urandom(32)
    addresses = [("127.0.0.1", listener.getsockname()[1])]
    agent_spec.write(agents.spec(plan, addresses, secret), directory)
    supervisor = Supervisor(plan, run_directory, listener, secret, Console(is_terminal=False))
    print(addresses[0][1], flush=True)
    supervisor.run()
    supervisor.close(0)


def _plan(directory: str, num_agents: int) -> Plan:
    """Return the plan of a script on this machine, spread over nodes that do not exist."""
    job = Job(
        command=Command(kind="script", target=program("running"), arguments=(directory,)),
        ranks_per_node=RANKS_PER_NODE,
        share_devices=True,
        run_directory=directory,
    )
    nodes = tuple(_address(index) for index in range(num_agents))
    return replace(prepare(job), where="slurm", nodes=nodes, num_nodes=num_agents)


def _address(index: int) -> str:
    """Return a node's name that resolves without a name server: an address of its own on loopback."""
    return f"127.0.{index // 250 + 10}.{index % 250 + 1}"


class SimulatedAgent:
    """Answers as an agent whose imports are done and whose ranks start at once."""

    def __init__(self, instructions: agent_spec.AgentSpec, index: int) -> None:
        placement = Placement(
            agent_index=index, node_rank=index, node=_address(index), first_local_rank=0, num_ranks=RANKS_PER_NODE,
            local_world_size=RANKS_PER_NODE, num_cores=56, num_devices=RANKS_PER_NODE,
        )  # fmt: skip
        facts = {**placement.facts(), "why_exec": ""}
        self.channel: Channel = connect(instructions.addresses, instructions.secret, facts, seconds=CONNECT_SECONDS)
        self.ranks = range(index * RANKS_PER_NODE, (index + 1) * RANKS_PER_NODE)
        self._line = bytearray()

    def hear(self) -> bool:
        """Answer what has come; return whether the run goes on.

        A start message is only skimmed: every real agent reads its own, on a node of its own.
        """
        self.channel.flush()
        with contextlib.suppress(BlockingIOError):
            while data := self.channel.socket.recv(1 << 18):
                self._line += data
                while b"\n" in self._line:
                    line, _, self._line = self._line.partition(b"\n")
                    if not self._answer(bytes(line[:64])):
                        return False
            return False
        return True

    def _answer(self, line: bytes) -> bool:
        if line.startswith(b'{"kind":"ports"'):
            self.channel.send("imported", seconds=1.0, why_exec="")
            self.channel.send("ports", attempt=0, ports=list(range(20000, 20000 + RANKS_PER_NODE + 1)), stores={})
        elif line.startswith(b'{"kind":"start"'):
            for rank in self.ranks:
                self.channel.send("started", attempt=0, rank=rank, pid=100_000 + rank)
            held = [self._held(rank) for rank in self.ranks]
            self.channel.send("bound", attempt=0, is_change=False, num_unseen=0, ranks=held)
        elif line.startswith(b'{"kind":"signal"'):
            for rank in self.ranks:
                self.channel.send(
                    "exit", attempt=0, rank=rank, status=0, why="", time=time.time(), tail="", log_problem=""
                )
        elif line.startswith(b'{"kind":"stop"'):
            self.channel.send("stopped", attempt=0)
        return not line.startswith(b'{"kind":"end"')

    def _held(self, rank: int) -> dict[str, object]:
        """Return what a real rank says of its place."""
        device = rank % RANKS_PER_NODE
        cores = f"{device * 8 + 1}-{device * 8 + 7}"
        return {
            "rank": rank, "is_within": True, "cpus": cores, "wanted_cpus": cores, "num_cores": 7, "device": device,
            "wanted_device": device, "distance": 10, "nic": f"hsn{device // 2}",
        }  # fmt: skip


def simulate(directory: str, num_agents: int) -> None:
    """Be all agents of a run."""
    _allow_many_files()
    instructions = agent_spec.read(directory)
    selector = selectors.DefaultSelector()
    channels: list[Channel] = []
    threading.Thread(target=_beat, args=(channels,), daemon=True).start()
    for index in range(num_agents):
        agent = SimulatedAgent(instructions, index)
        selector.register(agent.channel, selectors.EVENT_READ, agent)
        channels.append(agent.channel)
    while selector.get_map():
        for key, _ in selector.select():
            with contextlib.suppress(Closed, ConnectionError):
                if key.data.hear():
                    continue
            selector.unregister(key.fileobj)


def _beat(channels: list[Channel]) -> None:
    """Send the beats of all agents, spread over each second as those of real agents are."""
    line = encode("beat")
    while True:
        seconds = BEAT_SECONDS / max(1, len(channels))
        for channel in list(channels):
            channel.send_beside(line)
            time.sleep(seconds)
        if not channels:
            time.sleep(BEAT_SECONDS)


def _allow_many_files() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    if int(sys.argv[3]):
        simulate(sys.argv[1], int(sys.argv[2]))
    else:
        supervise(sys.argv[1], int(sys.argv[2]))
