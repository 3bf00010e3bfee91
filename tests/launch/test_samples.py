"""The file of samples: one number for equal ranks, news of devices once, and few lines in a long run."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from echelon.launch import line_times
from echelon.launch.run_directory import RunDirectory
from echelon.launch.samples import MOST_SECONDS, NAME, Samples

DAY = 24 * 3600


def member(*ranks: int) -> Any:
    """Return an agent with these ranks."""
    return SimpleNamespace(share=SimpleNamespace(ranks=ranks))


class Course:
    """A run whose clock is set by hand."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self._file = folder / NAME
        self._events = (folder / "events.jsonl").open("wb")
        self.samples = Samples(RunDirectory(str(folder), self._events), lambda: self.now)

    def hear(self, after: float, agent: Any, *steps: int, attempt: int = 0, **measures: "list[float | None]") -> None:
        self.now += after
        message = {"kind": "pulse", "attempt": attempt, "steps": list(steps), "measures": measures}
        self.samples.hear(agent, message)

    def lines(self) -> "list[dict[str, Any]]":
        return [json.loads(line) for line in self._file.read_text().splitlines()]


def test_lines(tmp_path: Path) -> None:
    course = Course(tmp_path)
    course.hear(0.5, member(0, 1), 5, 5)  # too early
    course.hear(1.0, member(0, 1), 7, 7)
    course.hear(1.0, member(2, 3), 8, 7)
    load = [{"device": 0, "looks": 6, "mean": 90.0, "most": 100}]
    course.samples.load["n"] = load
    course.hear(1.0, member(2, 3), 9, 9)
    course.hear(1.0, member(0, 1), 9, 9)
    course.hear(1.0, member(2, 3), 1, 1, attempt=1)
    head, *found = course.lines()
    assert head == {"format": 1}
    assert [line["steps"] for line in found] == [7, [7, 7, 8, 7], [7, 7, 9, 9], 9, 1]
    assert [line["attempt"] for line in found] == [0, 0, 0, 0, 1]
    assert [line.get("load") for line in found] == [None, None, {"n": load}, None, None]


def test_measures(tmp_path: Path) -> None:
    """Equal values stand once, and a missing one is no zero; the loss is the mean, and samples are the sum."""
    course = Course(tmp_path)
    course.hear(0.5, member(0, 1), 5, 5, loss=[1.0, 2.0], samples=[8, 8])
    course.hear(1.0, member(2), 5, loss=[6.0], samples=[8], data_seconds=[0.25])
    course.hear(2.0, member(2), 1, attempt=1)
    _, first, again = course.lines()
    assert (first["loss"], first["samples"]) == (3.0, 24)
    assert first["measures"] == {"loss": [1.0, 2.0, 6.0], "samples": 8, "data_seconds": [None, None, 0.25]}
    assert not {"loss", "samples", "measures"} & set(again)


def test_large_run_has_measures_in_few_lines(tmp_path: Path) -> None:
    course = Course(tmp_path)
    for turn in range(64):
        course.hear(1.0, member(*range(1024)), *[turn] * 1024, loss=[1 / (1 + rank) for rank in range(1024)])
    _, *lines = course.lines()
    assert len(lines) == 64
    assert all("loss" in line for line in lines)
    assert [place for place, line in enumerate(lines) if "measures" in line] == [0, 16, 32, 48]


def test_long_run_has_few_lines(tmp_path: Path) -> None:
    """A pulse of each of two agents every five seconds, for a day."""
    course = Course(tmp_path)
    for turn in range(DAY // 5):
        course.hear(5.0, member(0), turn)
        course.hear(0.0, member(1), turn)
    _, *found = course.lines()
    assert DAY / MOST_SECONDS * 0.9 < len(found) < DAY / MOST_SECONDS * 1.5


def test_full_disk_ends_no_run(tmp_path: Path) -> None:
    """The report names the file that could not be written."""
    course = Course(tmp_path)
    (tmp_path / NAME).mkdir()
    course.hear(2.0, member(0), 1)
    assert course.samples._directory.problem == f"{NAME}: Is a directory"


def test_lines_are_the_last_state_of_each_attempt(tmp_path: Path) -> None:
    """Places of several agents stand once, and what a supervisor before this one has written stays."""

    def told(place: str, rank: int, seconds: float) -> dict[str, Any]:
        rows = {"now": 0, "core_wait": 0.5, "before": [], "steps": [[0, seconds, 0.0, 9]], "after": []}
        return {"places": [["", "/train.py", 7, place]], "ranks": {str(rank): rows}}

    with (tmp_path / "events.jsonl").open("wb") as events:
        directory = RunDirectory(str(tmp_path), events)
        for supervisor in (line_times.LineTimes(directory), line_times.LineTimes(directory)):
            attempt = 1 if (tmp_path / line_times.NAME).exists() else 0
            supervisor.hear(attempt, told("f", 0, 1.0))
            supervisor.hear(attempt, told("g", 1, 1.0))
            supervisor.hear(attempt, told("g", 0, 2.0))
            supervisor.write()
    kept = json.loads((tmp_path / line_times.NAME).read_text())
    assert kept["format"] == 1
    assert list(kept["attempts"]) == ["0", "1"]
    for fields in kept["attempts"].values():
        assert fields["places"] == [["", "/train.py", 7, "f"], ["", "/train.py", 7, "g"]]
        assert fields["ranks"]["0"]["steps"] == [[1, 2.0, 0.0, 9]]
        assert fields["ranks"]["1"]["now"] == 1
