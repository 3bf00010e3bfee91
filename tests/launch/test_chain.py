"""The course of a job of a chain, on a node that has none of Slurm's commands."""

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from echelon.errors import EchelonError, UsageError
from echelon.host import Finished
from echelon.host.host import RecordedHost
from echelon.jobs import lease, settings
from echelon.jobs.course import ChainJob, ChainOver, with_chain
from echelon.jobs.history import History
from echelon.jobs.settings import Chain
from echelon.launch import runs
from echelon.launch.prepare import prepare
from echelon.orders.checkpoint import CheckpointOrder, folder
from echelon.script.reading import of_job
from echelon.spec import Command, Job

HOUR = 3600.0


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chain:
    """Offer a chain of three jobs, whose script lies in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import model\n")
    (tmp_path / "model.py").write_text("import torch\nloss.backward()\n")
    found = Chain(
        path=str(tmp_path / "run"),
        name="train-15f9c655",
        num_jobs=3,
        max_seconds=30 * HOUR,
        job_seconds=HOUR,
        reserve_seconds=120,
        resumes_anyway=False,
        made_by="echelon submit --chain 3 --max-hours 30 train.py",
    )
    os.mkdir(found.path)
    settings.write(found)
    return found


def job(path: Path) -> Job:
    command = Command(kind="script", target="train.py")
    return Job(
        command=command, checkpoints=CheckpointOrder("", steps=5), run_directory=str(path / "run"), ranks_per_node=2
    )


def host(now: float = 1000.0, answers: dict[tuple[str, ...], Finished] | None = None, job: int = 0) -> RecordedHost:
    environ = {"WANDB_RUN_ID": "mine", **({"SLURM_JOB_ID": str(job)} if job else {})}
    return RecordedHost(environ=environ, answers=answers or {}, now=now)


def course(chain: Chain, number: int, said: list[str], now: float = 1000.0) -> ChainJob:
    a_job = with_chain(job(Path(chain.path).parent), chain, host())
    saved = folder(prepare(a_job).environ)
    return ChainJob(chain, of_job(a_job), saved, host(now, job=number), said.append)


def ends(chain: Chain, cause: str, exit_code: int, step: int = -1) -> Callable[[], int]:
    """Return what stands for a supervisor: it leaves a report and perhaps a checkpoint."""

    def start() -> int:
        path = Path(chain.path)
        (path / "report.json").write_text(json.dumps({"exit_code": exit_code, "cause": cause, "detail": "…"}))
        (path / "events.jsonl").write_text("")
        if step >= 0:
            folder = path / "checkpoints" / f"step-{step:09}"
            folder.mkdir(parents=True)
            (folder / "manifest.json").touch()
        return exit_code

    return start


def test_jobs_follow_one_another_until_the_training_ends(chain: Chain) -> None:
    """A job that handed over ends well and keeps its records; one that comes after the end does nothing."""
    said: list[str] = []
    assert course(chain, 1, said).run(ends(chain, "handed over", 85, step=10)) == 0
    assert runs.read(chain.path).state == "handed over"
    assert course(chain, 2, said).run(ends(chain, "", 0, step=20)) == 0
    assert said[-2:] == [
        "chain train-15f9c655: the next job goes on after step 10",
        "chain train-15f9c655: job 2 of 3, goes on after step 10",
    ]
    assert (Path(chain.path) / "jobs" / "1" / "report.json").exists()

    def never() -> int:
        raise AssertionError("it started")

    assert course(chain, 3, said).run(never) == 0
    assert said[-1] == "this chain is over: the training has ended"
    assert not (Path(chain.path) / lease.NAME).exists()


def trains(
    chain: Chain, after: int, reached: int, saved: int, way: str, *, cause: str = "lost node"
) -> Callable[[], int]:
    """Return what stands for a job whose steps of 1 s went on after a saved one."""

    def start() -> int:
        ends(chain, cause, 85, step=saved)()
        path, number = Path(chain.path), reached - after
        (path / "plan.json").write_text(json.dumps({"format": 1, "scale_options": {"how": "data"}}))
        told = {"steps": number, "first_step": 130.0, "last_step": 129.0 + number, "step_times": []}
        moments = {"attempt": 101.0, "started": 110.0, "exit": 129.0 + number, "end": 130.0 + number}
        rows = [{"time": time, "event": name, "number": 0, "ranks": 1, "rank": 0} for name, time in moments.items()]
        rows[2].update(told)
        (path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        logs = path / "logs" / "attempt-0"
        logs.mkdir(parents=True)
        (logs / "rank-0.log").write_text(f"echelon: continues after step {after}, from {way}\n" if after else "")
        return 85

    return start


PUT_BACK = "a checkpoint; its variables were put back in 0.4 s"
REPEATED = "a checkpoint; the steps before it were repeated without computing in 61.5 s"


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        (
            [(0, 150, 100, ""), (100, 190, 150, PUT_BACK)],
            None,
        ),
        (
            [(0, 180, 100, ""), (100, 171, 150, PUT_BACK)],
            None,
        ),
        (
            [(0, 180, 100, ""), (100, 222, 150, PUT_BACK)],
            "150 new steps in 150 s; 152 steps in 152 s that were not saved; 0 s of repeating the loop",
        ),
        ([(0, 300, 100, ""), (100, 350, 150, "a checkpoint")], None),
        ([(0, 30, 30, ""), (30, 61, 61, REPEATED)], "61 new steps in 61 s; 0 steps in 0 s that were not saved; 62 s"),
        ([(0, 30, 30, ""), (30, 92, 92, REPEATED)], None),
    ],
    ids=["saved most", "as many", "more again", "counts its own steps", "long loop", "short loop"],
)
def test_chain_that_repeats_more_than_it_advances(
    chain: Chain, jobs: list[tuple[int, int, int, str]], message: str | None
) -> None:
    """The last two jobs count together; of a script that counts its own steps nothing is known."""
    course(chain, 1, []).run(trains(chain, *jobs[0]))
    if message is None:
        assert course(chain, 2, []).run(trains(chain, *jobs[1])) == 0
        return
    with pytest.raises(ChainOver, match=f"repeat more than they advance: {message}") as caught:
        course(chain, 2, []).run(trains(chain, *jobs[1]))
    assert caught.value.exit_code == 1
    assert ("a longer --time" if "0 steps" in message else "a shorter --checkpoint-every") in caught.value.hint


def test_short_jobs_get_a_note(chain: Chain) -> None:
    """A job that starts for longer than it trains is told so, and its chain goes on."""
    said: list[str] = []
    course(chain, 1, said).run(trains(chain, 0, 10, 10, "", cause="handed over"))
    course(chain, 2, said).run(trains(chain, 10, 60, 60, PUT_BACK, cause="handed over"))
    notes = [line for line in said if line.startswith("note: this job")]
    assert notes == [
        "note: this job started for 29 s, and made 10 new steps in 10 s; jobs with a longer --time start less often"
    ]


def test_mistake_of_the_script_ends_the_chain(chain: Chain) -> None:
    """The next job would meet the same error."""
    assert course(chain, 1, []).run(ends(chain, "error in the script", 1)) == 1
    over = History(chain.path).over
    assert over is not None
    assert (over["why"], over["exit_code"]) == ("error in the script: …", 1)


def test_bad_node_does_not_end_the_chain(chain: Chain) -> None:
    """A command line that began a job is not wrong in the next one: other nodes may start the ranks."""

    def refuse() -> int:
        raise UsageError("the node has a broken device", hint="--check off")

    with pytest.raises(ChainOver, match="broken device"):
        course(chain, 1, []).run(refuse)
    Path(chain.path, "chain.jsonl").unlink()
    course(chain, 1, []).run(ends(chain, "handed over", 85, step=10))
    said: list[str] = []
    assert course(chain, 2, said).run(refuse) == 0
    assert said[1] == "error: the node has a broken device"


def test_lost_node_does_not_end_the_chain(chain: Chain) -> None:
    """Another job gets other nodes."""
    assert course(chain, 1, []).run(ends(chain, "lost node", 1, step=3)) == 0


def test_last_job_says_that_the_training_has_not_ended(chain: Chain) -> None:
    """The command that goes on is in the message, and the exit code is not 0."""
    two = replace(chain, num_jobs=2)
    course(two, 1, []).run(ends(chain, "handed over", 85, step=10))
    with pytest.raises(ChainOver, match="had 2 jobs, and its training has not ended") as caught:
        course(two, 2, []).run(ends(chain, "handed over", 85, step=20))
    assert caught.value.exit_code == 85
    assert caught.value.hint == "echelon submit --resume run --chain 3 --max-hours 30 train.py"


def test_until_done_needs_sbatch_on_the_node(chain: Chain) -> None:
    """Where no job can be queued, it is said when the job starts, and again when nobody goes on."""
    endless, said = replace(chain, num_jobs=settings.UNTIL_DONE), list[str]()
    with pytest.raises(ChainOver, match="no job waits to go on"):
        course(endless, 1, said).run(ends(chain, "handed over", 85, step=10))
    assert "warning: no job can be queued from here: sbatch is not installed here" in said[1]


def test_job_that_slurm_starts_again_counts_once(chain: Chain) -> None:
    """A requeued job has the same number."""
    history = History(chain.path)
    for number in ("1", "2", "2", "3"):
        history.add("begin", 0.0, job_id=number, step=-1)
    assert history.num_jobs == 3


def test_hours_of_a_killed_job_are_at_most_its_limit() -> None:
    """A job that left no end counts until the next begin, and the last one with its limit."""
    history = History("/nonexistent")
    history.records = [
        {"event": "begin", "time": 0.0},
        {"event": "begin", "time": 10 * HOUR},
        {"event": "end", "time": 10.5 * HOUR},
        {"event": "begin", "time": 11 * HOUR},
    ]
    assert history.used_seconds(HOUR) == 2.5 * HOUR


def test_reserve_follows_the_last_save(chain: Chain) -> None:
    """Until a save was measured, the default counts; then three times the last one."""
    history = History(chain.path)
    assert history.reserve_seconds(120) == 120
    history.add("end", 1.0, save_seconds=100.0)
    assert history.reserve_seconds(120) == 300
    history.add("end", 2.0, save_seconds=1.0)
    assert history.reserve_seconds(120) == 30


def test_record_after_a_torn_one_is_read(chain: Chain) -> None:
    """A job that was killed while it wrote spoils only its own line."""
    (Path(chain.path) / "chain.jsonl").write_text('{"event": "begin", "time": 1, "job_id": "1"}\n{"event": "en')
    History(chain.path).add("begin", 2.0, job_id="2")
    assert [record["job_id"] for record in History(chain.path).records] == ["1", "2"]


def test_module_beside_the_script_counts(chain: Chain, tmp_path: Path) -> None:
    """An edited module is named, with the repair, before anything starts."""
    course(chain, 1, []).run(ends(chain, "handed over", 85, step=10))
    (tmp_path / "model.py").write_text("import torch\nother.backward()\n")
    with pytest.raises(ChainOver, match=r"model\.py was edited since the job before this one") as caught:
        course(chain, 2, []).run(ends(chain, "", 0))
    assert caught.value.exit_code == UsageError.exit_code
    assert "--resume-anyway" in caught.value.hint
    said: list[str] = []
    history = Path(chain.path, "chain.jsonl")
    history.write_text("".join(line for line in history.read_text().splitlines(True) if '"over"' not in line))
    assert course(replace(chain, resumes_anyway=True), 2, said).run(ends(chain, "", 0)) == 0
    assert said[0].startswith("note: model.py was edited since the job before this one")


def test_trackers_of_the_user_are_left_alone(chain: Chain, tmp_path: Path) -> None:
    """A run of W&B that the user named stays."""
    environ = dict(with_chain(job(tmp_path), chain, host()).environ)
    assert "WANDB_RUN_ID" not in environ
    assert (environ["NEPTUNE_CUSTOM_RUN_ID"], environ["ECHELON_CHAIN"]) == (chain.name, chain.path)


def _job_line(number: str, state: str) -> dict[tuple[str, ...], Finished]:
    text = f"JobId={number} JobState={state} ExitCode=0:0"
    return {("scontrol", "show", "job", "--oneliner", number): Finished(exit_code=0, stdout=text, stderr="")}


def _held(chain: Chain, **values: object) -> None:
    holder = {"format": 1, "job_id": "7", "node": "nid005001", "pid": 1, "time": time.time(), **values}
    (Path(chain.path) / lease.NAME).write_text(json.dumps(holder))


@pytest.mark.parametrize(
    ("answers", "is_held"),
    [(_job_line("7", "RUNNING"), True), (_job_line("7", "TIMEOUT"), False), ({}, True)],
    ids=["running", "ended", "unknown"],
)
def test_lease_of_another_job(chain: Chain, answers: dict[tuple[str, ...], Finished], is_held: bool) -> None:
    """It counts until Slurm says that the job has ended; where Slurm cannot be asked, it counts."""
    _held(chain)
    if is_held:
        with pytest.raises(UsageError, match=r"job 7 on nid005001 holds the run directory") as caught:
            lease.take(chain.path, "8", host(answers=answers))
        assert "scancel 7" in caught.value.hint
    else:
        lease.take(chain.path, "8", host(answers=answers)).release()
        assert not (Path(chain.path) / lease.NAME).exists()


@pytest.mark.parametrize(
    "values", [{"job_id": "8"}, {"node": socket.gethostname(), "pid": 1 << 22}], ids=["requeued", "dead process"]
)
def test_lease_that_its_holder_left(chain: Chain, values: dict[str, object]) -> None:
    """The same job, started again on another node, and a process that is gone, hold nothing."""
    _held(chain, **values)
    lease.take(chain.path, "8", host()).release()


def test_damaged_settings_are_an_error(chain: Chain) -> None:
    """A chain that cannot be read is not taken for a run."""
    (Path(chain.path) / settings.NAME).write_text("{")
    with pytest.raises(EchelonError, match=r"chain\.json cannot be read"):
        settings.read(chain.path)
