"""Facts that a run says aloud: each once, at most one a minute, with evidence; and none of a healthy run."""

from itertools import pairwise
from typing import Any

import pytest

from echelon.monitor.facts import PAUSE_SECONDS, Fact, SampleFacts

NUM_RANKS = 4


class Course:
    """Samples of a run, made by what each part of a step takes."""

    def __init__(self, **of_facts: Any) -> None:
        self.facts = SampleFacts(**of_facts)
        self.now, self.steps = 1000.0, 0
        self.sums: dict[str, float] = {}
        self.said: list[Fact] = []

    def go(self, seconds: float, step: float, **parts: float) -> None:
        """Sample once a second, with steps that take so long, and parts of them."""
        for _ in range(int(seconds)):
            self.now += 1.0
            made = int(1.0 / step)
            self.steps += made
            for name, each in {"step": step, "communication": 0.1 * step, **parts}.items():
                key = f"{name}_seconds"
                self.sums[key] = self.sums.get(key, 0.0) + each * made
            self.sample()

    def sample(self, **fields: Any) -> None:
        """Take one sample."""
        line = {"time": self.now, "attempt": 0, "ranks": NUM_RANKS, "steps": self.steps, "measures": dict(self.sums)}
        fact = self.facts.look({**line, **fields})
        if fact is not None:
            self.said.append(fact)

    @property
    def kinds(self) -> list[str]:
        return [fact.kind for fact in self.said]


def test_healthy_run_says_nothing() -> None:
    course = Course()
    course.go(600, 0.05, data=0.002)
    assert course.kinds == []


@pytest.mark.parametrize(
    ("communication", "is_unshared", "is_said"), [(0, True, True), (0, False, False), (1, True, False)]
)
def test_ranks_that_train_alone(communication: int, is_unshared: bool, is_said: bool) -> None:
    """A library trains the whole model on each rank of a script that nothing shares: said once, from its third step."""
    asked: list[int] = []
    course = Course(is_unshared=lambda: asked.append(0) or is_unshared)  # type: ignore[func-returns-value]
    for steps in (0, 2, 3, 9):
        course.steps = steps
        course.now += 100.0
        course.sample(
            measures={"step_seconds": 1.0 * steps, **({"communication_seconds": 0.1} if communication else {})}
        )
    assert course.kinds == (["ranks train alone"] if is_said else [])
    assert len(asked) == (0 if communication else 1)


@pytest.mark.parametrize(
    ("parts", "kind", "share"),
    [({"data": 0.02}, "bound by data", 0.4), ({"communication": 0.03}, "bound by communication", 0.6)],
)
def test_wait_is_said_once(parts: dict[str, float], kind: str, share: float) -> None:
    course = Course()
    course.go(600, 0.05, **parts)
    assert course.kinds == [kind]
    assert course.said[0].evidence["share"] == pytest.approx(share, abs=0.01)


def test_steps_that_became_slower() -> None:
    """A slow window, such as an evaluation, is no fact; steps that stay slow are."""
    course = Course()
    course.go(60, 0.05)
    course.go(10, 0.2)
    course.go(60, 0.05)
    assert course.kinds == []
    course.go(60, 0.1)
    assert course.kinds == ["slower"]


def test_losses() -> None:
    course = Course()
    course.go(30, 0.05)
    for loss in (2.3, 0.5, 0.6, 4.9, 6.0):
        course.sample(loss=loss)
    assert [(fact.kind, fact.evidence["loss"]) for fact in course.said] == [("loss explodes", 6.0)]
    course.now += PAUSE_SECONDS + 1
    course.sums["losses_not_finite"] = 1
    course.sample()
    course.go(100, 0.05)
    assert course.kinds == ["loss explodes", "loss not finite"]
    assert course.said[1].evidence["ranks"] == [0, 1, 2, 3]


def test_one_line_a_minute() -> None:
    course = Course()
    moments = []
    for second in range(300):
        course.now += 1.0
        course.steps += 20
        before = len(course.said)
        for name, value in (("step", 1.0), ("data", 0.3), ("communication", 0.6)):
            course.sums[f"{name}_seconds"] = course.sums.get(f"{name}_seconds", 0.0) + value
        course.sample(loss=1.0 if second < 5 else 50.0)
        if len(course.said) > before:
            moments.append(course.now)
    assert sorted(course.kinds) == ["bound by communication", "bound by data", "loss explodes"]
    assert all(later - earlier >= PAUSE_SECONDS for earlier, later in pairwise(moments))


def test_new_attempt_begins_anew() -> None:
    """The sums of ranks that were started again are smaller, and no negative time."""
    course = Course()
    course.go(30, 0.05)
    course.sums, course.steps = {}, 0
    line: dict[str, Any] = {"time": course.now + 20, "attempt": 1, "ranks": 2, "steps": 5, "measures": {}}
    assert course.facts.look(line) is None
    assert course.facts.look({**line, "time": course.now + 40, "steps": 50}) is None
