"""Silence of agents and of the warm process, with a clock of the test's own."""

from types import SimpleNamespace
from typing import Any

import pytest

from echelon.launch.crew import Heartbeat
from echelon.node import processes


class Clock:
    """Seconds that pass only when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Nodes:
    """A crew of two agents, each on a node of its own."""

    def __init__(self, clock: Clock) -> None:
        self.members: list[Any] = [
            SimpleNamespace(
                placement=SimpleNamespace(node=f"n{k}"), address="10.0.0.1", pid=1, heard_at=clock(), share=None
            )
            for k in range(2)
        ]
        self.expelled: dict[str, str] = {}

    def __iter__(self) -> Any:
        return iter(self.members)

    def expel(self, member: Any, why: str) -> None:
        self.members.remove(member)
        self.expelled[member.placement.node] = why


def pass_seconds(
    clock: Clock, heartbeat: Heartbeat, nodes: Nodes, seconds: int, *, silent: str = "", is_ending: bool = False
) -> None:
    for _ in range(seconds):
        clock.now += 1.0
        for member in nodes.members:
            if member.placement.node != silent:
                member.heard_at = clock.now
        heartbeat.look(is_ending=is_ending)


@pytest.mark.parametrize(("is_ending", "seconds"), [(False, 8), (True, 3)])
def test_silent_agent(is_ending: bool, seconds: int) -> None:
    """It is expelled after eight seconds, or soon if the run ends anyway; the others stay."""
    clock = Clock()
    nodes = Nodes(clock)
    heartbeat = Heartbeat(nodes, clock)  # type: ignore[arg-type]
    pass_seconds(clock, heartbeat, nodes, seconds - 1, silent="n1", is_ending=is_ending)
    assert nodes.expelled == {}
    pass_seconds(clock, heartbeat, nodes, 1, silent="n1", is_ending=is_ending)
    assert list(nodes.expelled) == ["n1"]
    assert "has been silent for" in nodes.expelled["n1"]
    assert "the agent or its node is frozen" in nodes.expelled["n1"]


def test_pause_of_the_supervisor_does_not_count() -> None:
    """After an hour in which the supervisor did not run, each agent has its full time again."""
    clock = Clock()
    nodes = Nodes(clock)
    heartbeat = Heartbeat(nodes, clock)  # type: ignore[arg-type]
    pass_seconds(clock, heartbeat, nodes, 5)
    clock.now += 3600
    heartbeat.look(is_ending=False)
    pass_seconds(clock, heartbeat, nodes, 7, silent="n0")
    assert nodes.expelled == {}
    pass_seconds(clock, heartbeat, nodes, 1, silent="n0")
    assert list(nodes.expelled) == ["n0"]


def test_stopped_warm_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five seconds of SIGSTOP in a row count; a pause of the agent itself begins them anew."""
    clock = Clock()
    states = {"now": "S"}
    monkeypatch.setattr(processes, "read", lambda pid: processes.Process(pid, 1, pid, states["now"], 0))
    watch = processes.HaltWatch(clock)

    def seconds(count: int) -> list[bool]:
        seen = []
        for _ in range(count):
            clock.now += 1.0
            seen.append(watch.is_frozen(7))
        return seen

    assert seconds(10) == [False] * 10
    states["now"] = "T"
    assert seconds(5) == [False] * 5
    clock.now += 600.0
    assert seconds(5) == [False] * 5
    assert seconds(1) == [True]
    states["now"] = "S"
    assert seconds(1) == [False]
