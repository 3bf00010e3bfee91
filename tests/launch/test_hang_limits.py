"""When silence is a hang: hours of a run with a clock of its own, in which slow phases are none."""

from types import SimpleNamespace
from typing import Any

import pytest

from echelon.launch.attempt import Attempt
from echelon.launch.failure import Failure
from echelon.launch.hangs import EXIT_CODE, Hangs

COLLECTIVE = [
    ["/lib/python3/site-packages/torch/distributed/distributed_c10d.py", 3, "all_reduce"],
    ["/me/train.py", 50, "<module>"],
]


class Node:
    """A run of two ranks on one node, whose agent says what the test wants."""

    def __init__(self, timeout: float | str) -> None:
        self.now = 0.0
        self.failures: list[Failure] = []
        self.asked: dict[str, Any] = {}
        placement = SimpleNamespace(agent_index=0, node="n1", first_local_rank=0)
        share = SimpleNamespace(first_rank=0, ranks=range(2))
        self.member: Any = SimpleNamespace(
            placement=placement, share=share, is_stopped=False, address="10.0.0.1", pid=1
        )
        crew: Any = type("Crew", (list,), {"tell_all": lambda _crew, _kind, **fields: self.asked.update(fields)})(
            [self.member]
        )
        plan: Any = SimpleNamespace(hang_timeout=timeout, stdin_rank=-1)
        directory: Any = SimpleNamespace(
            event=lambda *_, **__: None, write_text=lambda name, _: name, file=lambda *names: "/".join(names)
        )
        self.hangs = Hangs(plan, directory, crew, self.failures.append, clock=lambda: self.now)
        self.attempt = Attempt(0, alive={0, 1}, is_running=True)

    def live(
        self, seconds: int, *, quiet: bool, others: float = 1e9, idle: float = 1e9, longest: float = 0.1,
        has_stepped: bool = True, moves: bool = False, sleeps: bool = False, beats: bool = True,
    ) -> None:  # fmt: skip
        """Let seconds pass; in each the agent sends a pulse and answers."""
        began = self.now
        for _ in range(seconds):
            self.now += 1
            silence = self.now - began if quiet else 0.0
            if beats:
                self.hangs.hear(self.member, {
                    "kind": "pulse", "quiet_seconds": silence, "others_idle_seconds": min(others, silence),
                    "longest_seconds": longest, "has_stepped": has_stepped,
                })  # fmt: skip
            self.hangs.look(self.attempt)
            if self.asked:
                line = int(self.now) if moves else 41
                at_line = [["/me/train.py", line, "main"]]
                records = [
                    self._record(0, min(idle, silence), COLLECTIVE, ""),
                    self._record(1, min(idle, silence), at_line, "hrtimer_nanosleep" if sleeps else ""),
                ]
                self.hangs.hear(self.member, {"kind": "stacks", "round": self.asked.pop("round"), "ranks": records})
            if self.failures:
                return

    def _record(self, rank: int, idle: float, stack: list[Any], wchan: str) -> dict[str, Any]:
        return {"rank": rank, "pid": 1, "steps": 811, "idle_seconds": idle, "state": "S", "wchan": wchan, "syscall": "",
                "why": "", "collective": "", "text": "work()", "children": [], "threads": [[1, stack]]}  # fmt: skip


def test_auto_learns_the_limit() -> None:
    """Two minutes with short steps, ten times the longest step with long ones, half an hour before the first."""
    for longest, has_stepped, least in ((0.1, True, 120), (60.0, True, 600), (0.0, False, 1800)):
        node = Node("auto")
        node.live(10, quiet=False, longest=longest, has_stepped=has_stepped)
        node.live(4000, quiet=True, longest=longest, has_stepped=has_stepped)
        assert least + 10 <= node.now < least + 20
        assert node.failures[0].exit_code == EXIT_CODE
        assert "rank 1 on n1 is at train.py:41 (work()); rank 0 on n1 waits in all_reduce of step 812, train.py:50" in (
            node.failures[0].detail
        )


@pytest.mark.parametrize(
    ("phase", "seconds"),
    [
        ({"others": 1.0}, 20_000),  # a download, a checkpoint, compilers
        ({"idle": 0.0, "moves": True}, 20_000),  # an evaluation in Python
        ({"idle": 0.0}, 590),  # one long call
        ({"sleeps": True}, 1700),  # a script that waits for a file
        ({"has_stepped": False}, 1700),  # a long first batch
    ],
)
def test_slow_phases_of_auto(phase: dict[str, Any], seconds: int) -> None:
    """A run with short steps goes through long phases without one, again and again."""
    node = Node("auto")
    for _ in range(3):
        node.live(50, quiet=False, has_stepped=phase.get("has_stepped", True))
        node.live(seconds, quiet=True, **phase)
    assert node.failures == []


def test_one_call_for_ever() -> None:
    """A rank that uses a core at one line for five times the limit hangs."""
    node = Node("auto")
    node.live(10, quiet=False)
    node.live(2000, quiet=True, idle=0.0)
    assert 600 <= node.now < 660


def test_silent_agent() -> None:
    """An agent without a pulse is named after the limit."""
    node = Node(30.0)
    node.live(10, quiet=False)
    node.live(100, quiet=True, beats=False)
    assert 30 <= node.now - 10 <= 32
    assert "the agent on n1, which runs ranks 0 to 1, has been silent for" in node.failures[0].detail


def test_pause_of_the_supervisor() -> None:
    """After a pause of the supervisor's own loop, silence begins anew."""
    node = Node(30.0)
    node.live(10, quiet=False)
    node.live(20, quiet=True)
    node.now += 10_000
    node.live(25, quiet=True)
    assert node.failures == []
    node.live(60, quiet=True)
    assert len(node.failures) == 1


def test_off() -> None:
    """Without a limit nothing is a hang."""
    node = Node("off")
    node.live(10, quiet=False)
    node.live(20_000, quiet=True)
    assert node.failures == []
