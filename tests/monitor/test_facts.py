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


def test_ranks_that_take_turns_are_not_equally_fast() -> None:
    """On average they are, and wait half of the time for each other."""
    facts, said = SampleFacts(), []
    waited = [0.0, 0.0]
    for second in range(1, 40):
        slow = second // 2 % 2
        waited[slow] += 0.2
        waited[1 - slow] += 0.9
        measures = {"step_seconds": float(second), "communication_seconds": list(waited)}
        line = {"time": 1000.0 + second, "attempt": 0, "ranks": 2, "steps": 25 * second}
        said.append(facts.look({**line, "measures": measures}))
    assert [fact.kind for fact in said if fact is not None] == ["ranks take turns"]


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
    """One batch that is hard is no explosion; losses that stay high are."""
    course = Course()
    course.go(30, 0.05)
    for loss in (2.3, 0.5, 0.5, 0.6, 0.4, 6.0, 0.5, 0.6):
        course.sample(loss=loss)
    assert course.said == []
    for loss in (5.9, 6.0, 6.1):
        course.sample(loss=loss)
    assert [(fact.kind, fact.evidence["loss"]) for fact in course.said] == [("loss explodes", 5.9)]


def note(rank: int, step: int, **fields: Any) -> dict[str, Any]:
    return {"rank": rank, "kind": "not finite", "what": "loss", "step": step, "value": "nan", **fields}


def test_first_bad_step_is_that_of_all_ranks() -> None:
    """A rank that has only met the weights of another one is heard first, and not named; nothing waits for a minute."""
    course = Course()
    course.go(30, 0.05, data=0.02)
    course.sample(notes=[note(3, 8, what="weights", value="0.5"), note(2, 9)])
    course.go(1, 0.05)
    course.sample(notes=[note(1, 8, weights="finite", samples=[4, 5], num_samples=70, bad_sample=5)])
    assert course.kinds == ["bound by data", "value not finite"]
    assert course.said[1].line == (
        "step 8: the loss of rank 1 is nan; the weights were finite before; its batch: samples 4, 5 … (70 samples); "
        "sample 5 itself has a value that is not finite"
    )
    course.sample(notes=[note(0, 9)])
    course.go(10, 0.05)
    assert course.kinds[1:] == ["value not finite"]


def test_bad_step_whose_cause_is_unknown_is_said_after_a_pause() -> None:
    """A device's values are read later, so that a rank with a later step may be heard first."""
    course = Course()
    course.sample(notes=[note(0, 9)])
    assert course.kinds == []
    course.go(1, 0.05)
    course.sample(notes=[note(1, 8)])
    course.go(1, 0.05)
    assert [fact.evidence["rank"] for fact in course.said] == [1]
    late = Course()
    late.sample(notes=[note(0, 9)])
    assert [fact.evidence["rank"] for fact in late.facts.rest()] == [0]


def test_spikes_are_few() -> None:
    course = Course()
    for step in range(9):
        course.sample(notes=[note(0, step, kind="spike", value="9", usual=0.5)])
    assert course.kinds == ["spike"] * 3
    assert course.said[0].line == "step 0: the loss of rank 0 is 9; the median of those before is 0.5"


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
