"""`echelon report`: on generated run directories whose truth is known, on cut and foreign files, and on real runs."""

import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import warm
from tests.runs import ECHELON
from tests.tiers import some

from echelon.cli.options import OPTIONS, scan
from echelon.cli.run import read_job
from echelon.errors import UsageError
from echelon.monitor import account, advice, attempts, recorded, training
from echelon.monitor import report as report_of
from echelon.node.pulse import bucket, seconds_of
from echelon.orders.checkpoint import VARIABLE

BEGAN = 1_800_000_000.0


@given(st.integers(1 << 10, 1 << 50))
def test_bucket_has_the_time_of_its_steps(nanoseconds: int) -> None:
    assert seconds_of(bucket(nanoseconds)) == pytest.approx(nanoseconds / 1e9, rel=0.07)
    assert bucket(nanoseconds) <= bucket(nanoseconds + nanoseconds // 8 + 1)


class Generated:
    """A run directory that is written event by event."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = BEGAN
        self.events: list[dict[str, Any]] = []
        folder.mkdir()
        self.write("plan.json", {"format": 1, "num_nodes": 1, "scale_options": {"how": "data"}, "environ": []})

    def write(self, name: str, fields: dict[str, Any]) -> None:
        (self.folder / name).write_text(json.dumps(fields))

    def event(self, kind: str, after: float = 0.0, **fields: Any) -> None:
        self.now += after
        self.events.append({"time": self.now, "event": kind, **fields})
        (self.folder / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in self.events))

    def account(self, now: "float | None" = None) -> account.Account:
        return account.of_run(recorded.read(str(self.folder)), now)

    def samples(self, *lines: "tuple[float, int, Any]") -> None:
        """Write samples, each a time after the begin, an attempt and steps; the last line is cut off."""
        rows = [{"time": BEGAN + after, "attempt": number, "steps": made} for after, number, made in lines]
        text = "".join(json.dumps(row) + "\n" for row in [{"format": 1}, *rows])
        (self.folder / "samples.jsonl").write_text(text + '{"time": 1800000045.0, "att')


def steps(run: Generated, number: int, each: float, first: float) -> dict[str, Any]:
    """Return what a rank tells of its steps, the last of which ends now."""
    times = sorted(Counter({bucket(int(each * 1e9)): number - 1}).items())
    return {"steps": number, "first_step": first, "last_step": run.now, "step_times": times}


durations = st.floats(0.01, 500.0)


@settings(max_examples=50, deadline=None)
@given(parts=st.lists(durations, min_size=7, max_size=7), number=st.integers(2, 500), each=st.floats(0.001, 2.0))
def test_report_of_a_generated_run(
    tmp_path_factory: pytest.TempPathFactory, parts: list[float], number: int, each: float
) -> None:
    """Time by phase, steps, GPU hours and the bill are those that were generated, with a restart in the middle."""
    waiting, importing, preparing, dying, again, ending, _ = parts
    run = Generated(tmp_path_factory.mktemp("run") / "run")
    run.write("booking.json", {"billed": 40.0, "billed_unit": "GPU-hours", "minutes": 60})
    run.event("supervisor", pid=1, node="n")
    run.event("agent", 0.0, agent_index=0, node="n", devices=8)
    run.event("attempt", waiting, number=0, ranks=2)
    run.event("imported", importing, node="n", seconds=importing)
    for rank in range(2):
        run.event("started", rank=rank)
    first = run.now + preparing
    run.now = first + (number - 1) * each
    told = steps(run, number, each, first)
    run.event("exit", dying, rank=1, status=-9, **told)
    run.event("exit", 0.0, rank=0, status=-15, **told)
    run.event("restart", 0.0, cause="killed by a signal", rank=1, error="")
    run.event("attempt", 0.0, number=1, ranks=2)
    run.event("started", again / 2, rank=0)
    first = run.now + again / 2
    run.now = first + (number - 1) * each
    told = steps(run, number, each, first)
    run.event("exit", ending, rank=0, status=0, **told)
    run.event("end", 0.0, exit_code=0)

    found = run.account()
    total = waiting + importing + preparing + dying + again + ending + 2 * (number - 1) * each
    expected = {
        attempts.IMPORT: importing,
        attempts.START: waiting,
        attempts.BEFORE: preparing,
        attempts.STEPS: 2 * (number - 1) * each,
        attempts.RESTARTS: dying + again,
        attempts.END: ending,
    }
    assert seconds(found) == pytest.approx(expected, abs=1e-3, rel=1e-3)
    assert found.seconds == pytest.approx(total, rel=1e-3)
    assert found.device_hours == pytest.approx(8 * total / 3600, rel=1e-3)
    assert found.billed == pytest.approx(40.0 * total / 3600, rel=1e-3)
    assert found.steps is not None
    assert (found.steps.number, found.steps.num_again) == (2 * number, number)
    assert found.goodput == pytest.approx((number - 1) * each / total, rel=1e-2)
    assert found.steps.per_second == pytest.approx(1 / each, rel=1e-2)
    assert found.steps.median_seconds == pytest.approx(each, rel=0.07)
    assert [(one.cause, one.rank) for one in found.attempts] == [("killed by a signal", 1), ("", -1)]


def test_steps_that_were_computed_again(tmp_path: Path) -> None:
    """A run that was resumed after step 100 failed at 151, went on after 140, failed at 160, and went on after 160.

    An attempt that failed before it said from where it goes on repeats nothing.
    """
    run = Generated(tmp_path / "run")
    for number, (after, many) in enumerate([(100, 51), (0, 0), (140, 20), (160, 30)]):
        run.event("attempt", 1.0, number=number, ranks=1)
        run.now += 50.0
        run.event("exit", 0.0, rank=0, status=-9, **steps(run, many, 1.0, run.now - many + 1))
        logs = run.folder / "logs" / f"attempt-{number}"
        logs.mkdir(parents=True)
        said = f"echelon: continues after step {after}, from a checkpoint\n" if after else ""
        (logs / "rank-0.log").write_text(f"step 3 continues after step 999, from me\n{said}step {after}\n")
    run.event("end", 0.0, exit_code=137)
    found = run.account().steps
    assert found is not None
    assert (found.number, found.num_again) == (101, 11)


def test_steps_of_a_lost_node_come_from_the_samples(tmp_path: Path) -> None:
    """Its ranks told nothing at their end; a line that is cut off is left out."""
    run = Generated(tmp_path / "run")
    run.event("attempt", 1.0, number=0, ranks=2)
    run.event("started", 1.0, rank=0)
    run.event("agent lost", 50.0, node="n", why="no answer")
    run.event("restart", 0.0, cause="lost agent", rank=-1, error="")
    run.samples((10, 0, [30, 31]), (40, 0, 121))
    [attempt] = attempts.read(recorded.read(str(run.folder)))
    assert (attempt.num_steps, attempt.first_step, attempt.last_step) == (121, BEGAN + 10, BEGAN + 40)
    steps_of_run = run.account().steps
    assert steps_of_run is not None
    assert steps_of_run.per_second == pytest.approx(90 / 30)


def seconds(found: account.Account) -> "dict[str, float]":
    return {phase.name: phase.seconds for phase in found.phases}


def test_killed_run_ends_with_its_last_record(tmp_path: Path) -> None:
    """A run whose supervisor and keeper were killed has no end; the time since then is not its own."""
    run = Generated(tmp_path / "run")
    run.event("supervisor", pid=1, node="n")
    run.event("agent", 0.0, agent_index=0, node="n", devices=4)
    run.event("attempt", 1.0, number=0, ranks=4)
    run.event("started", 1.0, rank=0)
    run.samples((10, 0, 80), (100, 0, 800))
    found = run.account()
    assert (found.seconds, found.device_hours) == (100.0, 4 * 100 / 3600)
    assert seconds(found) == {attempts.START: 2.0, attempts.BEFORE: 8.0, attempts.STEPS: 90.0}
    assert seconds(run.account(now=BEGAN + 120))[attempts.STEPS] == 110.0  # as long as it goes on


def test_agents_that_start_again_have_the_same_devices(tmp_path: Path) -> None:
    """A lost agent, and all agents of a second supervisor, connect once more."""
    run = Generated(tmp_path / "run")
    for index in (0, 1, 1, 0):
        run.event("agent", 900.0, agent_index=index, node=f"n{index}", devices=8)
    run.event("end", 900.0, exit_code=0)
    assert (run.account().num_devices, run.account().device_hours) == (16, 16.0)


def test_attempts_that_fail_before_their_first_step_are_restarts(tmp_path: Path) -> None:
    run = Generated(tmp_path / "run")
    run.event("supervisor", pid=1, node="n")
    for number in range(2):
        run.event("attempt", 1.0, number=number, ranks=1)
        run.event("started", 1.0, rank=0)
        if number == 0:
            run.event("exit", 7.0, rank=0, status=1)
            run.event("restart", 0.0, cause="error in the script", rank=0, error="")
    run.now += 5.0 + 9.0
    run.event("exit", 0.0, rank=0, status=0, **steps(run, 10, 1.0, run.now - 9.0))
    run.event("end", 3.0, exit_code=0)
    found = run.account()
    expected = {
        attempts.START: 2.0,
        attempts.RESTARTS: 9.0,
        attempts.BEFORE: 5.0,
        attempts.STEPS: 9.0,
        attempts.END: 3.0,
    }
    assert seconds(found) == expected
    assert sum(expected.values()) == found.seconds


def test_job_that_hands_over_has_not_failed(tmp_path: Path) -> None:
    run = Generated(tmp_path / "run")
    run.event("attempt", 0.0, number=0, ranks=1)
    run.event("end", 9.0, exit_code=0, cause="told to save and end, echelon in charge", rank=-1)
    assert run.account().attempts[0].cause == ""


@pytest.mark.parametrize("kind", ["attempt", "exit", "agent"])
def test_foreign_event_is_one_error(tmp_path: Path, kind: str) -> None:
    run = Generated(tmp_path / "run")
    run.event("attempt", number=0, ranks=1)
    run.event(kind, steps="many", devices="some", ranks="all")
    with pytest.raises(UsageError, match="that echelon did not write"):
        run.account()


def test_chain_is_summed_up(tmp_path: Path) -> None:
    """The report is of the last job; one line has the sum of all, whose records are in jobs/N."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "jobs").mkdir()
    for folder, seconds in (("run/jobs/10", 300.0), ("run/jobs/2", 200.0), ("run/jobs/other", 9.0)):
        job = Generated(tmp_path / folder)
        job.event("supervisor", pid=1, node="n")
        job.event("end", seconds, exit_code=0)
    assert [Path(path).name for path in recorded.earlier_jobs(str(tmp_path / "run"))] == ["2", "10"]
    events = [{"time": BEGAN, "event": "supervisor"}, {"time": BEGAN + 100, "event": "end", "exit_code": 0}]
    (tmp_path / "run" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    said = report(tmp_path, "run").stdout
    assert "chain     3 jobs · 10 min 00 s · 0 steps; this is the last job" in said
    assert "used      1 min 40 s" in said


def test_bill_is_a_part_of_what_was_booked(tmp_path: Path) -> None:
    run = Generated(tmp_path / "run")
    run.write("booking.json", {"billed": 24.0, "billed_unit": "GPU-hours", "minutes": 120, "partition": "small-g",
                               "machine": "lumi"})  # fmt: skip
    run.event("supervisor", pid=1, node="n")
    run.event("agent", 0.0, agent_index=0, node="n", devices=8)
    run.event("end", 1800.0, exit_code=0)
    said = report(tmp_path, "run").stdout
    assert "used      30 min 00 s · 4 GPU hours · billed: 6 of at most 24 GPU-hours" in said
    assert "small-g of lumi for 120 min" in said


def test_running_and_empty_runs(tmp_path: Path) -> None:
    """A run that goes on ends now; one without a start has only that."""
    run = Generated(tmp_path / "run")
    run.event("supervisor", pid=1, node="n")
    found = run.account(now=BEGAN + 30)
    assert found.phases == (attempts.Phase(name=attempts.START, seconds=30.0),)
    run.event("attempt", 5.0, number=0, ranks=1)
    run.event("started", 5.0, rank=0)
    found = run.account(now=BEGAN + 30)
    assert {phase.name: phase.seconds for phase in found.phases}[attempts.SCRIPT] == 20.0
    assert found.steps is None
    assert sum(phase.seconds for phase in found.phases) == found.seconds == 30.0


def test_advice_has_evidence(tmp_path: Path) -> None:
    """Idle devices and long restarts are told; a run without them gets no advice."""
    run = Generated(tmp_path / "run")
    run.event("supervisor", pid=1, node="n")
    run.event("attempt", 0.0, number=0, ranks=2)
    run.event("started", 1.0, rank=0)
    run.event("exit", 100.0, rank=0, status=1)
    run.event("restart", 0.0, cause="error in the script", rank=0, error="")
    run.event("attempt", 100.0, number=1, ranks=2)
    run.event("started", 1.0, rank=0)
    run.event("exit", 100.0, rank=0, status=0)
    run.event("end", 0.0, exit_code=0)
    idle = {"device": 0, "looks": 20, "mean": 0.0, "most": 0}
    run.write("report.json", {"format": 1, "load": {"n": [idle, {**idle, "device": 1, "mean": 96.0, "most": 100}]}})
    found = recorded.read(str(run.folder))
    said = advice.advise(found, account.of_run(found))
    assert [sentence.partition(":")[0] for sentence in said] == [
        "1 of 2 devices were idle all the time (device 0 on n)",
        "failures took 1 min 41 s, 33% of the time, and the steps that were computed again",
    ]
    run.write("report.json", {"format": 1})
    run.events = [run.events[0], *run.events[5:]]
    run.event("end", 0.0, exit_code=0)
    found = recorded.read(str(run.folder))
    assert advice.advise(found, account.of_run(found)) == []


@pytest.mark.parametrize(
    ("calls", "threads", "is_told"), [(15, 1, False), (60, 1, True), (95, 1, False), (60, 16, False)]
)
def test_line_of_slow_steps(tmp_path: Path, calls: int, threads: int, is_told: bool) -> None:
    """A line with little of the steps explains no slow ones, one with more than these take is in others too.

    Threads that outnumber the cores make steps slow by themselves.
    """
    run = Generated(tmp_path / "run")
    run.event("supervisor")
    run.event("agent", agent_index=0, node="n", cores=2)
    run.event("attempt", 1.0, number=0, ranks=1)
    run.event("started", 1.0, rank=0)
    run.now += 100.0
    times = [[bucket(int(each * 1e9)), number] for each, number in ((0.1, 400), (5.0, 10))]
    made = {**steps(run, 411, 1.0, run.now - 90.0), "step_times": times}
    run.event(
        "exit", rank=0, status=0, **made, measures={"step_seconds": 90.0, "backward_seconds": 3.0, "threads": threads}
    )
    run.event("end", 1.0, exit_code=0)
    run.write("plan.json", {"format": 1})
    rows = {"now": 0, "core_wait": 0, "before": [], "steps": [[0, calls, 1, 9], [1, 100 - calls, 1, 9]], "after": []}
    places = [["", "/a/train.py", 7, "evaluate"], ["", "", 0, ""]]
    run.write("lines.json", {"format": 1, "attempts": {"0": {"places": places, "ranks": {"0": rows}}}})
    found = recorded.read(str(run.folder))
    said = advice.advise(found, account.of_run(found))
    assert [sentence for sentence in said if "three times the median: do these call train.py:7" in sentence] == said
    assert bool(said) == is_told


@pytest.mark.parametrize(("seconds", "is_told"), [((1, 8), False), ((8, 8), True), ((1, 2), True)])
def test_wait_for_a_rank_in_its_line_asks_for_no_larger_messages(
    tmp_path: Path, seconds: tuple[int, int], is_told: bool
) -> None:
    """What one rank does in its line explains that the others wait; what all do, or little of it, explains nothing."""
    run = Generated(tmp_path / "run")
    run.event("supervisor")
    run.event("attempt", 1.0, number=0, ranks=2)
    run.event("started", 1.0, rank=0)
    run.now += 10.0
    for rank in range(2):
        measures = {"step_seconds": 10.0, "communication_seconds": 5.0, "backward_seconds": 1.0}
        run.event("exit", rank=rank, status=0, **steps(run, 10, 1.0, run.now - 9.0), measures=measures)
    run.event("end", 1.0, exit_code=0)
    places = [["", "/a/train.py", 7, "lock.acquire"], ["", "", 0, ""]]
    rows = {"now": 0, "core_wait": 0, "before": [], "after": []}
    ranks = {str(rank): {**rows, "steps": [[0, each, 0, 9], [1, 10 - each, 1, 9]]} for rank, each in enumerate(seconds)}
    run.write("lines.json", {"format": 1, "attempts": {"0": {"places": places, "ranks": ranks}}})
    found = recorded.read(str(run.folder))
    assert any("larger batch" in each for each in advice.advise(found, account.of_run(found))) == is_told


@pytest.mark.parametrize(
    ("options", "saves", "advised"),
    [
        (None, False, []),
        ({"how": "data"}, False, ["--compress bf16", "--sync-every 100"]),
        ({"how": "data"}, True, []),
        ({"how": "data", "compress": "fp16"}, False, []),
        ({"how": "data", "bucket_megabytes": 4.0}, False, ["--compress bf16"]),
        ({"how": "data", "num_shards": 4}, False, []),
        ({"how": "data", "steps_alone": 8}, False, []),
        ({"how": "data", "syncs_batch_norm": True}, False, ["--compress bf16"]),
        ({"how": "fsdp"}, False, []),
        ({"how": "tensor"}, False, []),
        ({"how": "own.py:Mine"}, False, []),
    ],
)
def test_advice_has_only_options_that_the_run_would_accept(
    tmp_path: Path, options: "dict[str, Any] | None", saves: bool, advised: list[str]
) -> None:
    """An option is named only if `echelon run` takes it together with those that were given; no gain is promised."""
    run = Generated(tmp_path / "run")
    run.event("supervisor")
    run.event("attempt", 1.0, number=0, ranks=2)
    run.event("started", 1.0, rank=0)
    run.now += 10.0
    for rank in range(2):
        measures = {"step_seconds": 9.0, "communication_seconds": 6.0, "backward_seconds": 3.0}
        run.event("exit", rank=rank, status=0, **steps(run, 10, 1.0, run.now - 9.0), measures=measures)
    run.event("end", 1.0, exit_code=0)
    run.write("plan.json", {"format": 1, "scale_options": options, "environ": [[VARIABLE, "{}"]] if saves else []})
    found = recorded.read(str(run.folder))
    [said] = advice.advise(found, account.of_run(found))
    assert said.startswith("67% of the steps' time was waiting for other ranks: would a larger batch")
    assert said.endswith(f"?{advice.MEASURE}" if advised else "?")
    assert re.findall("--[a-z-]+ [a-z0-9]+", said) == advised
    for option in advised:
        read_job(scan([*option.split(), "train.py"], OPTIONS, command="run"))  # the command line takes it


MANY_THREADS = "2 ranks with 4 threads each run on 4 cores; torch.set_num_threads(2) fits"


@pytest.mark.parametrize(
    ("threads", "cores", "waited", "advised"),
    [
        (4, 4, 3.0, f"ranks waited 33% for a core: {MANY_THREADS}"),
        (4, 4, 0.6, f"ranks waited 7% for a core: {MANY_THREADS}"),
        (1, 1, 3.0, "ranks waited 33% for a core: 2 ranks with 1 thread each run on 1 core: start fewer of them (-n)"),
        (2, 4, 3.0, "ranks waited 33% for a core: what else runs on this node?"),
        (2, None, 3.0, "ranks waited 33% for a core: what else runs on this node?"),
        (2, 4, 0.6, "67% was waiting for other ranks: would a larger batch"),
    ],
)
def test_advice_about_cores_follows_from_what_the_agent_offers(
    tmp_path: Path, threads: int, cores: "int | None", waited: float, advised: str
) -> None:
    """A number of threads is named where the ranks have more of them than cores; an old run does not know its cores."""
    run = Generated(tmp_path / "run")
    run.event("supervisor")
    run.event("agent", agent_index=0, node="n", **({} if cores is None else {"cores": cores}))
    run.event("attempt", 1.0, number=0, ranks=2)
    run.event("started", 1.0, rank=0)
    run.now += 10.0
    for rank in range(2):
        measures = {"step_seconds": 9.0, "core_wait_seconds": waited, "backward_seconds": 3.0, "threads": threads}
        measures["communication_seconds"] = 6.0  # with long waits for cores larger messages would not help
        run.event("exit", rank=rank, status=0, **steps(run, 10, 1.0, run.now - 9.0), measures=measures)
    run.event("end", 1.0, exit_code=0)
    run.write("plan.json", {"format": 1})
    found = recorded.read(str(run.folder))
    said, *more = advice.advise(found, account.of_run(found))
    assert said.replace(" of the steps' time", "").startswith(advised)
    assert bool(more) == (waited < 1.0 and "for a core" in said)


def test_what_the_run_said_of_its_way(tmp_path: Path) -> None:
    """The sums at the end show no step that became slower; facts that have a line of their own stand once."""
    run = Generated(tmp_path / "run")
    run.event("supervisor")
    run.event("fact", fact="slower", line="steps take 90 ms, and took 30 ms before")
    run.event("fact", fact="straggler", line="rank 1 makes the others wait")
    run.event("end", 1.0, exit_code=0)
    run.write("plan.json", {"format": 1})
    found = recorded.read(str(run.folder))
    said = [(word, lines) for word, lines in report_of.findings(found, account.of_run(found), []) if lines]
    assert said == [("note", ["steps take 90 ms, and took 30 ms before"])]


@pytest.mark.parametrize(
    ("measures", "said"),
    [
        ({"step_seconds": 9.0, "core_wait_seconds": 3.0, "thread_wait_seconds": 18.0}, 3 / 9),  # of those beside it
        ({"step_seconds": 9.0, "core_wait_seconds": 3.0, "thread_wait_seconds": 24.0, "threads": 4}, 6 / 9),
        ({"step_seconds": 9.0, "core_wait_seconds": 12.0}, 1.0),
    ],
)
def test_wait_for_cores_is_that_of_the_threads_that_compute(measures: "dict[str, float]", said: float) -> None:
    """It is no more than the time of the steps."""
    assert training._core_wait([[measures]]) == pytest.approx(said)


def test_short_steps_get_no_advice(tmp_path: Path) -> None:
    """In steps of less than half a second all together a blink of the machine is a large part."""
    run = Generated(tmp_path / "run")
    run.event("supervisor")
    run.event("attempt", 1.0, number=0, ranks=2)
    for rank in range(2):
        measures = {"step_seconds": 0.4, "communication_seconds": 0.3, "backward_seconds": 0.1}
        run.event("exit", rank=rank, status=0, **steps(run, 10, 1.0, run.now - 0.4), measures=measures)
    run.event("end", 1.0, exit_code=0)
    run.write("plan.json", {"format": 1})
    found = recorded.read(str(run.folder))
    assert advice.advise(found, account.of_run(found)) == []


def report(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return warm.run(["-m", "echelon", "report", *words], cwd=folder)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "echelon-runs/ of this folder has no runs"),
        (("nothing",), "there is no run nothing"),
        (("run",), "plan.json has format 9, and this echelon reads formats up to 1"),
        (("run", "run", "run"), "a report is of one run or of two, not of 3"),
    ],
)
def test_wrong_input_has_one_error(tmp_path: Path, words: "tuple[str, ...]", error: str) -> None:
    run = Generated(tmp_path / "run")
    run.event("supervisor", pid=1, node="n")
    run.write("plan.json", {"format": 9})
    done = report(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert error in done.stderr.replace("\n  ", " ")
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr


TRAIN = """
import sys, time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    model(torch.ones(8, 4)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
"""


@pytest.mark.parametrize("launch", some(["warm", "exec"], 2))
def test_report_of_real_runs(tmp_path: Path, launch: str) -> None:
    """All steps of each rank are counted, however it is started; two runs are compared; nothing needs a hang watch."""
    (tmp_path / "train.py").write_text(TRAIN)
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    for directory, number in (("one", "30"), ("two", "60")):
        line = ["run", "--run-dir", directory, "-n", "2", "--launch", launch, "--scale", "off", "--hang-timeout", "off"]
        assert not warm.run(["-m", "echelon", *line, "train.py", number], cwd=tmp_path, environ=environ).returncode
    told = json.loads(report(tmp_path, "--json", "one", "two").stdout)["runs"]
    assert [run["steps"]["number"] for run in told] == [30, 60]
    assert all(run["steps"]["median_seconds"] > 0.009 for run in told)
    for run in told:
        assert sum(phase["seconds"] for phase in run["phases"]) == pytest.approx(run["seconds"], abs=0.01)
        assert [phase["name"] for phase in run["phases"]][-2:] == ["steps", "end"]
    lines = report(tmp_path, "one", "two").stdout.splitlines()
    assert lines[0].split() == ["one", "two", "ratio"]
    assert next(line for line in lines if line.startswith("steps  ")).split() == ["steps", "30", "60", "2.00"]
    assert report(tmp_path, "one").stdout.startswith("run one · ended well · ")


MEASURES = [
    {"step_seconds": 9.0, "data_seconds": 2.0, "backward_seconds": 3.0, "communication_seconds": 1.0, "samples": 90.0,
     "loss": 0.25, "loader_workers": 0, "peak_resident_bytes": 5 << 30},
    {"step_seconds": 9.0, "data_seconds": 3.0, "backward_seconds": 3.0, "communication_seconds": 0.5, "samples": 90.0,
     "loss": 0.75, "loader_workers": 0, "peak_resident_bytes": 6 << 30, "peak_allocated_bytes": 1 << 30},
]  # fmt: skip


def test_what_steps_were_made_of(tmp_path: Path) -> None:
    """Parts are means over the ranks and add up to the steps' time; samples and tokens are those of all ranks."""
    run = Generated(tmp_path / "run")
    run.event("supervisor")
    run.event("attempt", 1.0, number=0, ranks=2)
    run.event("started", 1.0, rank=0)
    run.now += 10.0
    for rank, measures in enumerate(MEASURES):
        run.event("exit", rank=rank, status=0, **steps(run, 10, 1.0, run.now - 9.0), measures=measures)
    run.event("end", 1.0, exit_code=0)
    run.samples((2.0, 0, 1))
    training = run.account().training
    assert training is not None
    assert training.parts == {"data": 2.5, "backward": 3.0, "communication": 0.75, "other lines": 2.75}
    assert training.samples_per_second == pytest.approx(180 / 9)
    assert (training.tokens_per_second, training.last_loss, training.compile_seconds) == (None, 0.5, None)
    assert (training.peak_allocated_bytes, training.peak_resident_bytes) == (1 << 30, 6 << 30)
    text = report(tmp_path, "run").stdout
    assert "a step    data                           2.50 s  27.8%" in text
    assert "speed     20 samples a second" in text
    assert "has the node idle cores for more workers of the DataLoader" in text
    assert not re.search("num_workers=[0-9]|times as many", text)


def test_measures_of_a_run_that_was_killed(tmp_path: Path) -> None:
    """The newest sample counts for ranks that have told no end; the first loss is that of the first sample."""
    run = Generated(tmp_path / "run")
    run.event("supervisor")
    run.event("attempt", 1.0, number=0, ranks=2)
    run.event("started", 1.0, rank=0)
    names = sorted(MEASURES[0])
    rows = [
        {"time": BEGAN + 3 + turn, "attempt": 0, "ranks": 2, "steps": 5 + turn, "loss": 4.0 - turn,
         "measures": {name: [MEASURES[0][name] * turn / 3, MEASURES[1][name] * turn / 3] for name in names}}
        for turn in (1, 2, 3)
    ]  # fmt: skip
    head = json.dumps({"format": 1})
    (run.folder / "samples.jsonl").write_text("\n".join([head, *map(json.dumps, rows), '{"time": 9, "meas']))
    training = run.account().training
    assert training is not None
    assert training.parts["data"] == pytest.approx(2.5)
    assert training.seconds == pytest.approx(9.0)
    assert training.first_loss == 3.0


def test_loss_of_a_run_that_ends_without_a_number(tmp_path: Path) -> None:
    run = Generated(tmp_path / "run")
    run.event("supervisor")
    run.event("attempt", 1.0, number=0, ranks=1)
    run.event("started", 1.0, rank=0)
    measures = {"step_seconds": 9.0, "data_seconds": 2.0, "losses_not_finite": 3}
    row = {"time": BEGAN + 3, "attempt": 0, "ranks": 1, "steps": 2, "loss": 4.0, "measures": {"loss": 4.0}}
    (run.folder / "samples.jsonl").write_text(json.dumps({"format": 1}) + "\n" + json.dumps(row) + "\n")
    run.event("exit", rank=0, status=0, **steps(run, 10, 1.0, run.now - 9.0), measures=measures)
    run.event("end", 1.0, exit_code=0)
    run.event("fact", fact="value not finite", line="step 8: the loss of rank 0 is nan")
    assert "loss      4 → not finite (not finite in 3 steps)" in report(tmp_path, "run").stdout
    (told,) = json.loads(report(tmp_path, "--json", "run").stdout)["runs"]
    assert {"kind": "bad step", "sentence": "step 8: the loss of rank 0 is nan"} in told["findings"]
    assert (told["training"]["last_loss"], told["training"]["losses_not_finite"]) == (None, 3)


def test_rank_that_ends_before_its_agent_tells_of_its_start(tmp_path: Path) -> None:
    run = Generated(tmp_path / "run")
    run.event("supervisor")
    run.event("attempt", 1.0, number=0, ranks=1)
    run.event("started", 0.5, rank=0)
    run.event("exit", -0.25, rank=0, status=0)
    run.event("end", 1.0, exit_code=0)
    assert {phase.name: phase.seconds for phase in run.account().phases} == {"start": 1.25, "end": 1.0}


def test_program_without_steps(tmp_path: Path) -> None:
    subprocess.run([*ECHELON, "run", "--run-dir", "one", "--", "sleep", "0.2"], cwd=tmp_path, check=True)
    done = report(tmp_path, "one")
    assert "script" in done.stdout
    assert "steps     no optimizer of PyTorch made a step" in done.stdout


def test_energy_is_that_of_the_devices_that_tell_it(tmp_path: Path) -> None:
    run = Generated(tmp_path / "run")
    run.event("supervisor")
    run.event("agent", agent_index=0, devices=3)
    run.event("attempt", 1.0, number=0, ranks=1)
    run.event("end", 3599.0, exit_code=0)
    seen = {"looks": 360, "mean": 50.0, "most": 99}
    load = {"nid1": [{"device": 0, **seen, "energy_joules": 1.08e6}, {"device": 1, **seen, "energy_joules": 0.72e6}]}
    load["nid1"].append({"device": 2, **seen})
    run.write("report.json", {"format": 1, "exit_code": 0, "load": load})
    told = run.account()
    assert told.energy_joules == pytest.approx(1.8e6)
    assert told.device_hours == pytest.approx(3.0)
    assert "3 GPU hours · 0.5 kWh of its devices" in report(tmp_path, "run").stdout
