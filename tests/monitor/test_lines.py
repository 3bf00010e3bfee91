"""The lines in which ranks spend their steps: looked at in the rank, kept in the run, said in the report."""

import gc
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import warm

from echelon.monitor import account, lines, recorded, report
from echelon.monitor.lines import RankLines, ScriptLine
from echelon.monitor.traces import report as traces_report
from echelon.monitor.watch.live import Live
from echelon.monitor.watch.screen import View, draw
from echelon.node import call_page, frames, line_sampler, pulse
from echelon.node.line_sampler import StackPlace
from echelon.node.pulse_page import PulsePage
from echelon.node.script_lines import call_in

OWN = str(Path(__file__))


class Watched:
    """This process, looked at as a rank is."""

    def __init__(self) -> None:
        self.page = PulsePage()
        self.sampler = line_sampler.LineSampler(self.page.descriptor)

    def rows(self, phase: str) -> "dict[tuple[str, int], list[float]]":
        """Return seconds, seconds on a core and looks by part and line, of this file's lines."""
        self.sampler._end()
        told: dict[tuple[str, int], list[float]] = {}
        for name, place, times in self.page.lines() or ():
            if name == phase and place.file == OWN:
                sums = told.setdefault((place.part, place.line), [0.0] * 3)
                told[place.part, place.line] = [whole + more for whole, more in zip(sums, times, strict=True)]
        return told


@pytest.fixture
def watched() -> Iterator[Watched]:
    before = list(gc.callbacks)
    this_process = Watched()
    yield this_process
    this_process.sampler._end()
    assert gc.callbacks == before
    this_process.page.close()


def line_of(text: str) -> int:
    """Return the number of this file's only line with a comment."""
    (number,) = (number for number, line in enumerate(Path(OWN).read_text().splitlines(), 1) if line.endswith(text))
    return number


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_sleeping_running_and_phases(watched: Watched) -> None:
    """What came before the first step, and after the last one, is not of the steps."""
    watched.sampler.begin()
    time.sleep(0.2)  # before
    watched.sampler.steps = 1
    time.sleep(0.4)  # sleeps
    busy(0.4)
    watched.sampler.steps = 2
    time.sleep(0.1)  # ends the step
    time.sleep(0.2)  # after
    steps = watched.rows(line_sampler.STEPS)
    slept = steps["", line_of("# sleeps")]
    assert 0.3 < slept[0] < 0.8
    assert slept[1] < 0.1 * slept[0] + 0.05
    ran = sum(times[1] for (_, line), times in steps.items() if line != line_of("# sleeps"))
    assert ran == pytest.approx(0.4, abs=0.15)
    assert ("", line_of("# before")) in watched.rows(line_sampler.BEFORE)
    assert ("", line_of("# after")) in watched.rows(line_sampler.AFTER)
    assert ("", line_of("# before")) not in steps


def test_parts_of_the_page_lie_apart() -> None:
    """Four writers have a part each, in the order in which the page's module tells them."""
    measures_end = (pulse.MEASURED + 1 + len(pulse.MEASURES)) * 8
    lines_end = line_sampler.AT + line_sampler.BYTES
    notes_end = (pulse.NOTES + 1) * 8 + pulse.MOST_NOTES_BYTES
    assert measures_end <= call_page.CALLS_AT < call_page.END <= line_sampler.AT < lines_end <= pulse.NOTES * 8
    assert notes_end <= pulse.PAGE_BYTES


def test_closure_of_an_optimizer_is_the_scripts(watched: Watched) -> None:
    """Lightning computes a whole step inside of optimizer.step(): the script's lines there are no optimizer."""
    import torch

    def closure() -> float:
        time.sleep(0.3)  # in a closure
        return 0.0

    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    watched.sampler.begin()
    torch.optim.SGD([weight], lr=0.1).step(closure)
    assert watched.rows(line_sampler.BEFORE)["", line_of("# in a closure")][0] > 0.15


def test_lines_inside_of_backward(watched: Watched) -> None:
    """A hook, or the script's own function, has its line; the line that goes backward has the rest."""
    import torch

    weight = torch.ones(1, requires_grad=True)
    weight.register_hook(lambda _: time.sleep(0.3))  # in a hook
    watched.sampler.begin()
    (weight * 2).sum().backward()
    assert watched.rows(line_sampler.BEFORE)[frames.IN_BACKWARD, line_of("# in a hook")][0] > 0.15


def test_instruction_without_a_line() -> None:
    """A loop that jumps back, where a call that held Python's lock is seen late, has the line of the one before it."""
    code = SimpleNamespace(co_lines=lambda: [(0, 30, 3), (30, 46, 4), (46, 48, None), (48, 50, 6)], co_firstlineno=1)
    at_jump, before_all = (line_sampler._line_at(SimpleNamespace(f_code=code, f_lineno=None), at) for at in (46, -1))
    assert (at_jump, before_all) == (4, 1)


def test_garbage_collection_belongs_to_its_line(watched: Watched) -> None:
    kept = [[] for _ in range(400_000)]  # type: ignore[var-annotated]
    watched.sampler.begin()
    began = time.perf_counter()
    for _ in range(5):
        gc.collect()  # collects
    passed = time.perf_counter() - began
    rows = watched.rows(line_sampler.BEFORE)
    assert kept
    assert rows[frames.COLLECTING, line_of("# collects")][0] == pytest.approx(passed, rel=0.2)


def test_forks_write_nothing_and_the_parent_goes_on(watched: Watched) -> None:
    """A fork finds one thread, and the next step or garbage collection starts it again."""
    watched.sampler.begin()
    time.sleep(0.1)
    pid = os.fork()
    if pid == 0:
        alone = len(os.listdir("/proc/self/task")) == 1 and not watched.sampler._is_running.locked()
        watched.sampler.resume()
        os._exit(0 if alone and not watched.sampler._is_running.locked() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    gc.collect()
    time.sleep(0.3)  # goes on
    assert watched.rows(line_sampler.BEFORE)["", line_of("# goes on")][0] > 0.1


def test_rows_are_bounded_and_a_half_written_page_is_none(watched: Watched) -> None:
    """Many lines leave the largest ones and the sum of all."""
    rows = watched.sampler._rows[line_sampler.STEPS]
    for number in range(1, 500):
        line_sampler._add(rows, StackPlace("", "/" + "a" * 190 + ".py", number, (number, 0, 10)), number / 1000, 0.0)
    whole = sum(times[0] for times in rows.values())
    watched.sampler._write()
    told = [times[0] for phase, place, times in watched.page.lines() or () if phase == line_sampler.STEPS]
    assert len(told) <= line_sampler.MOST_ROWS
    assert sum(told) == pytest.approx(whole, abs=0.1)
    page = pulse.words(watched.page.descriptor)
    page[line_sampler.AT // 8] += 1  # the head of the next writing
    assert watched.page.lines() is None


def test_descriptor_that_the_script_closed(watched: Watched) -> None:
    """Nothing is written into the file that has its number now, and nothing is said."""
    descriptor = os.dup(watched.page.descriptor)
    looking = line_sampler.LineSampler(descriptor)
    looking.begin()
    time.sleep(0.1)
    os.close(descriptor)
    other = os.memfd_create("of the script")
    try:
        if other != descriptor:
            os.dup2(other, descriptor)
        looking._end()
        assert os.fstat(other).st_size == 0
    finally:
        os.close(descriptor)
    closed = line_sampler.LineSampler(watched.page.descriptor)
    closed._is_wanted, closed._descriptor = True, descriptor
    closed._end()


def test_call_of_a_place() -> None:
    """The instruction's call is named where Python tells it, and else the only call of the line."""
    source = ["y = model(x).pow(2).mean()\n", "time.sleep(\n", "    0.1)\n", "x += 1\n"]
    assert call_in(source, StackPlace("", "a.py", 1, (1, 4, 12))) == "model"
    assert call_in(source, StackPlace("", "a.py", 2, (3, 0, 8))) == "time.sleep"
    assert call_in(source, StackPlace("", "a.py", 4, (4, 0, 6))) == "x += 1"
    assert call_in(source, StackPlace("", "a.py", 4, (0, 0, 0))) == ""
    assert call_in(source, StackPlace("", "a.py", 9, (9, 0, 6))) == ""


def known(**seconds: float) -> RankLines:
    steps = {
        ScriptLine(part="", file="/a.py", number=int(name[1:]), call="f"): (time, 0.0) for name, time in seconds.items()
    }
    return RankLines(now=None, core_wait=0.0, steps=steps)


def test_lines_of_one_rank_and_of_all() -> None:
    ranks = {0: known(_1=5.0, _2=5.0), 1: known(_1=2.0, _2=5.0, _3=3.0)}
    told = lines.sentences(lines.shares(ranks), num_ranks=2)
    assert told == [
        "50% of every rank's steps is in a.py:2, `f`, sleeping",
        "50% of rank 0's steps is in a.py:1, `f`, sleeping",
        "30% of rank 1's steps is in a.py:3, `f`, sleeping",
    ]
    slower = lines.slower({0: ranks[0], 1: ranks[1], 2: ranks[0]}, 1)
    assert [(each.words, each.share) for each in slower] == [("a.py:3, `f`, sleeping", 0.3)]


SLEEPS = """
import gc, time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(25):
    model(torch.randn(4, 6)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 1:
        time.sleep(0.1)
"""


def test_run_names_the_line_of_the_slow_rank(tmp_path: Path) -> None:
    """lines.json has where each rank was, and the report a sentence; the line is also the cause of the straggler."""
    (tmp_path / "train.py").write_text(SLEEPS)
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = warm.run(["-m", "echelon", "run", "--run-dir", "run", "-n", "2", "train.py"], cwd=tmp_path, environ=environ)
    assert not done.returncode, done.stderr
    read = recorded.read(str(tmp_path / "run"))
    run = account.of_run(read)
    text = report.text("run", "ended well", read, run, [])
    assert "of rank 1's steps is in train.py:14, `time.sleep`, sleeping" in text
    assert "train.py:14 time.sleep" in text
    (slow,) = run.stragglers
    assert (slow.rank, slow.cause) == (1, "spends longer in train.py:14, `time.sleep`, sleeping")
    kept: dict[str, Any] = json.loads((tmp_path / "run" / "lines.json").read_text())
    assert kept["format"] == 1
    assert set(kept["attempts"]["0"]["ranks"]) == {"0", "1"}


def test_watch_shows_the_line_of_each_rank(tmp_path: Path) -> None:
    """A rank that has ended is in no line."""
    begun = [{"time": 1.0, "event": "attempt", "number": 0, "ranks": 2}]
    started = [{"time": 2.0, "event": "started", "rank": rank, "node": "n"} for rank in range(2)]
    ended = [{"time": 3.0, "event": "exit", "rank": 1, "status": 0}]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in begun + started + ended))
    told = {"now": 0, "core_wait": 0.0, "before": [], "steps": [], "after": []}
    attempts = {"0": {"places": [["", "/train.py", 7, "time.sleep"]], "ranks": {"0": told, "1": told}}}
    (tmp_path / "lines.json").write_text(json.dumps({"format": 1, "attempts": attempts}))
    state = Live("run", str(tmp_path)).look()
    assert [rank.line for rank in state.ranks] == ["train.py:7, `time.sleep`", ""]
    shown = "\n".join(draw(state, View(level="node"), 140, 20))
    assert shown.count("train.py:7, `time.sleep`") == 1


def test_profile_ends_with_the_lines() -> None:
    assert (
        traces_report.text([], ["9% of the steps is in train.py:7"]) == "where     9% of the steps is in train.py:7\n"
    )


@pytest.mark.parametrize(
    "kept", [{}, {"attempts": []}, {"attempts": {"0": {"places": [], "ranks": {"0": {"now": 5}}}}}]
)
def test_foreign_file_has_no_lines(kept: Any) -> None:
    assert lines.of_attempt(kept, 0) == {}
