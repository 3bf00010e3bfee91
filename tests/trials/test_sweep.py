"""The parts of `echelon sweep`: values, metrics in a run's output, the median, and slots."""

import math
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from echelon.cli import main
from echelon.errors import UsageError
from echelon.host import Host, RecordedHost
from echelon.node.order import CHAIN
from echelon.trials.sweep import loop, record, slots, space, table
from echelon.trials.sweep import trial as trials
from echelon.trials.sweep.record import SweepQuestion
from echelon.trials.sweep.source import ListedTrials
from echelon.trials.sweep.trial import ENDED, FAILED, MeasuredLoss, PrintedMetric, SweepTrial


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-3,3e-4", ["1e-3", "3e-4"]),
        ("sgd,a b,$(x)", ["sgd", "a b", "$(x)"]),
        ("s3://a/b", ["s3://a/b"]),
        ("64:1024:log2", ["64", "128", "256", "512", "1024"]),
        ("3:20:log2", ["3", "6", "12"]),
        ("1e-4:0.1:log10", ["0.0001", "0.001", "0.01", "0.1"]),
        ("0:3", ["0", "1", "2", "3"]),
        ("-1:1:0.5", ["-1", "-0.5", "0", "0.5", "1"]),
        ("0:0.3:0.1", ["0", "0.1", "0.2", "0.3"]),
        ("5:5", ["5"]),
    ],
)
def test_values_of_a_parameter(text: str, values: list[str]) -> None:
    """Lists pass byte for byte; ranges end with the last number that they reach."""
    [parameter] = space.read([f"x={text}"])
    assert [parameter.value(index) for index in range(parameter.num_values)] == values


def test_grid_changes_the_last_parameter_first() -> None:
    parameters = space.read(["a=1,2", "b=x,y"])
    assert [tuple(values.values()) for values in space.grid(parameters)] == [
        ("1", "x"), ("1", "y"), ("2", "x"), ("2", "y"),
    ]  # fmt: skip


def test_draws_are_distinct_within_their_ranges_and_repeat_with_the_seed() -> None:
    parameters = space.read(["lr=1e-5:1e-1:log", "width=64:1024:log2", "seed=0:1000000000"])
    drawn = space.draws(parameters, 200, seed=3)
    assert drawn == space.draws(parameters, 200, seed=3) != space.draws(parameters, 200, seed=4)
    rates = sorted(float(values["lr"]) for values in drawn)
    assert 1e-5 <= rates[0] < 1e-4 < 1e-2 < rates[-1] <= 1e-1
    assert {values["width"] for values in drawn} == {"64", "128", "256", "512", "1024"}
    assert len({values["seed"] for values in drawn}) == 200
    few = space.read(["a=0:4"])
    assert len({values["a"] for values in space.draws(few, 4, seed=0)}) == 4
    assert space.draws(few, 9, seed=0) == space.grid(few)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-p", "lr", "train.py"], "-p lr: give a name, = and its values"),
        (["-p", "9=1", "train.py"], "-p 9=1: give a name"),
        (["-p", "lr=", "train.py"], "-p lr=: a value is empty"),
        (["-p", "lr=1,,2", "train.py"], "-p lr=1,,2: a value is empty"),
        (["-p", "n=8:1", "train.py"], "-p n=8:1: the range is empty: 8 is above 1"),
        (["-p", "lr=0:1:log", "train.py"], "a logarithmic range begins above 0, and this one begins at 0"),
        (["-p", "n=1:8:0", "train.py"], "after the second colon comes a step above 0, or log"),
        (["-p", "n=1:8:log3", "train.py"], "after the second colon comes a step above 0, or log"),
        (["-p", "n=1:8:log2,9", "train.py"], "the range 1:8:log2 stands in a list"),
        (["-p", "trial=1", "train.py"], "echelon itself sets trial and folder"),
        (["-p", "a=1", "-p", "a=2", "train.py"], "-p a and -p a both set ECHELON_SWEEP_A"),
        (["-p", "a-b=1", "-p", "a_b=2", "train.py"], "-p a-b and -p a_b both set ECHELON_SWEEP_A_B"),
        (["-p", "lr=0.1:1", "train.py"], "there is no end of numbers in the range of -p lr"),
        (["-p", "a=1:1000", "-p", "b=1:1000", "train.py"], "there are 1000000 combinations"),
        (["-p", "lr=1", "--", "train.py", "{rate}"], "{rate} has no values; -p gives values to lr"),
        (["-p", "lr=1"], "echelon sweep needs a script"),
        (["train.py"], "echelon sweep needs the values of a parameter"),
        (["-p", "a=1,2", "--sampler", "grid", "--samples", "1", "train.py"], "--sampler grid takes all combinations"),
        (["-p", "a=1,2", "--sampler", "optuna", "train.py"], "--sampler optuna needs the number of trials"),
        (["-p", "a=1,2", "--sampler", "tpe", "train.py"], "--sampler tpe: the choices are grid, random, optuna"),
        (["-p", "a=1,2", "--stop", "best", "train.py"], "--stop best: the choices are median"),
        (["-p", "a=1,2", "--metric", "", "train.py"], "--metric '': give the name"),
        (["-p", "a=1,2", "--gpus-per-run", "2", "train.py"], "--gpus-per-run 2: this machine has no device"),
        (["-p", "a=1,2", "-n", "2", "train.py"], "echelon has no option -n"),
        (["--resume", "nothing"], "nothing/sweep.json has no sweep: No such file"),
        (["--resume", "nothing", "--metric", "x"], "--metric would change it"),
    ],
)  # fmt: skip
def test_wrong_words_are_one_error(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command tells the mistake and a repair, and leaves no file."""
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *words]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("echelon: note: ")]
    assert message in said[0]
    assert said[0].startswith("echelon: error: ")
    assert said[1].startswith("  hint: ")
    assert len(said) == 2
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--", "echelon", "sweep", "-p", "n=1", "--gpus-per-run", "9", "a.py", "{n}"],
            "a node of the job has 8 devices",
        ),
        (["--", "echelon", "sweep", "-p", "n=1", "b.py", "{n}"], "there is no script b.py"),
        (["--env", "A=1", "--", "echelon", "sweep"], "--env is an option of the runs of the sweep"),
        (["--plain", "--", "echelon", "sweep"], "--plain does not go with a sweep"),
    ],
)
def test_sweep_that_cannot_run_is_not_submitted(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").touch()
    assert main(["submit", "--machine", "lumi", "-A", "project_465000001", "--gpus", "8", "-t", "60", *words]) == 2
    assert message in capsys.readouterr().err.splitlines()[0]
    assert os.listdir(tmp_path) == ["a.py"]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("epoch 3 val_loss 0.31", [0.31]),
        ("val_loss: 0.31, val_acc: 0.9", [0.31]),
        ("val_loss=3.1e-01.", [0.31]),
        ('{"step": 3, "val_loss": 0.31}', [0.31]),
        ("{'val_loss': tensor(0.3100)}", [0.31]),
        ("VAL_LOSS = .31", [0.31]),
        ("val_loss -1 val_loss 2", [-1.0, 2.0]),
        ("val_loss inf", [math.inf]),
        ("best_val_loss 0.2 val_loss_ema 0.3 train/val_loss 0.4 val_loss2 5", []),
        ("val_loss 1,234.5", []),
        ("val_loss 3x", []),
        ("val_loss", []),
        ("0.31", []),
    ],
)
def test_printed_metric(line: str, values: list[float]) -> None:
    """A value is the number behind the name; another name, or another way to write numbers, gives none."""
    metric = PrintedMetric("val_loss")
    reports = [report for data in (line[:9], line[9:], "") for report in metric.reports(data.encode())]
    assert reports == list(enumerate(values, 1))


def test_measured_losses_are_read_once(tmp_path: Path) -> None:
    """A line that is still being written is read with the next look."""
    loss, file = MeasuredLoss(str(tmp_path)), tmp_path / "samples.jsonl"
    assert loss.reports(None) == []
    file.write_text('{"format": 1}\n{"time": 1, "samples": 8, "loss": 2.5}\n{"time": 2, "samples": 16, "lo')
    assert loss.reports(None) == [(8, 2.5)]
    with file.open("a") as end:
        end.write('ss": 2.0}\n')
    assert loss.reports(b"the run prints") == []
    assert loss.reports(b"") == [(16, 2.0)]


def trial(number: int, values: Sequence[float], sign: int = 1, state: str = ENDED) -> SweepTrial:
    told = SweepTrial(number=number, values={}, state=state)
    for place, value in enumerate(values, 1):
        told.hear((place, value), sign)
    return told


@pytest.mark.parametrize("sign", [1, -1])
def test_median_compares_the_best_at_the_same_place(sign: int) -> None:
    """A trial that begins as badly as the others began stays; five others must have ended well."""
    others = [trial(number, [sign * (9 + number), sign * number], sign) for number in range(5)]
    bad, fair = trial(5, [sign * 12], sign, "waiting"), trial(6, [sign * 11], sign, "waiting")
    assert trials.is_worse_than_median(bad, [*others, bad], sign)
    assert not trials.is_worse_than_median(fair, [*others, fair], sign)
    assert not trials.is_worse_than_median(bad, [*others[1:], bad], sign)
    fair.hear((2, sign * 3), sign)
    assert trials.is_worse_than_median(fair, [*others, fair], sign)
    fair.hear((3, sign * 100), sign)
    assert not trials.is_worse_than_median(fair, [*others, fair], sign)  # none came as far
    lost = trial(7, [math.nan], sign, "waiting")
    assert trials.is_worse_than_median(lost, [*others, lost], sign)


def test_course_of_a_metric_in_each_step_stays_short() -> None:
    """The first and the newest best value are exact, and a place between has one of those before it."""
    told = trial(0, [1 / number for number in range(1, 50_000)])
    assert len(told.course) < 2000
    assert (told.best_until(1), told.best_until(50_000)) == (1.0, 1 / 49_999)
    assert (told.best_until(25_000) or 0.0) == pytest.approx(1 / 25_000, rel=0.01)


def test_ranking_puts_what_has_no_number_last() -> None:
    told = [trial(0, [math.nan]), trial(1, []), trial(2, [3, 2]), trial(3, [1], state=FAILED), trial(4, [2.5])]
    assert [each.number for each in trials.ranked(told, 1)] == [2, 4, 0, 1, 3]
    assert [each.number for each in trials.ranked(told, -1)] == [4, 2, 0, 1, 3]


def places(devices: str, **asked: int) -> list[slots.SweepSlot]:
    host = RecordedHost(environ={"CUDA_VISIBLE_DEVICES": devices}, answers={})
    return slots.of(host, tuple(asked.get(name, 0) for name in ("devices_per_run", "ranks_per_run", "per_node")))


def test_slots_of_this_machine() -> None:
    """Without a word each device is a slot, and a machine without devices is one."""
    assert [slot.num_ranks for slot in places("4,5,6,7")] == [1, 1, 1, 1]
    assert [slot.words[-3:] for slot in places("4,5,6", devices_per_run=2)] == [("0", "1", "2")]
    assert [slot.num_ranks for slot in places("", ranks_per_run=3, per_node=2)] == [3, 3]
    assert len(places("")) == 1


@pytest.mark.parametrize(
    ("devices", "asked", "message"),
    [
        ("0,1", {"devices_per_run": 3}, "1 run of 3 devices side by side, .* this machine has 2 devices"),
        ("0,1", {"devices_per_run": 1, "per_node": 3}, "3 runs of 1 device side by side, .* this machine has 2"),
        ("0,1", {"ranks_per_run": 2}, "--ranks-per-run is for nodes without devices, and this machine has 2"),
        ("", {"devices_per_run": 2}, "--gpus-per-run 2: this machine has no device"),
    ],
)
def test_slots_without_room(devices: str, asked: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        places(devices, **asked)


class Starts(Host):
    """Starts a short program in place of each run, and keeps the words."""

    def __init__(self) -> None:
        self.words: list[list[str]] = []

    def start(self, argv: Sequence[str], **_: Any) -> Any:
        self.words.append(list(argv))
        return subprocess.Popen([sys.executable, "-IS", "-c", "print('x 1')"], stdout=subprocess.PIPE)


def question(folder: Path, *words: str, parameters: Sequence[str] = ("lr=1",)) -> SweepQuestion:
    return SweepQuestion(
        folder=str(folder), arguments=(), parameters=space.read(parameters), words=words, metric="x", sign=1,
        stops=False,
    )  # fmt: skip


@pytest.mark.parametrize("option", ["--checkpoint-every", "--timeout"])
def test_interrupted_trial_goes_on_from_its_checkpoint(tmp_path: Path, option: str) -> None:
    """The second run saved into the folder of the first one; without checkpoints it begins anew."""
    (tmp_path / "trial-0" / "checkpoints" / "step-000000005").mkdir(parents=True)
    (tmp_path / "trial-0" / "checkpoints" / "step-000000005" / "manifest.json").touch()
    (tmp_path / "trial-0-1").mkdir()
    known, host = [SweepTrial(number=0, values={"lr": "1"}, run="trial-0-1")], Starts()
    asked = question(tmp_path, option, "10m", "train.py", "{lr}")
    [slot] = slots.of(host, (0, 0, 0))
    view = table.SweepView(asked, lambda _: None, {})
    loop.SweepLoop(asked, [slot], ListedTrials(known), known, host, view, lambda _: None).run()
    run, saves = tmp_path / "trial-0-2", option == "--checkpoint-every"
    resumed = ["--resume", str(tmp_path / "trial-0")] if saves else []
    to_save = ["--env", f"{CHAIN}={run}"] if saves else []
    words = ["run", *resumed, "--run-dir", str(run), "-n", "1", *to_save, option, "10m", "train.py", "1"]
    assert host.words[0][-len(words) :] == words
    [kept] = record.read(str(tmp_path))[1]
    assert (kept.state, kept.metric, kept.run) == (ENDED, 1.0, "trial-0-2")


def test_job_waits_for_the_sweep_of_the_job_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere the same folder is refused at once."""
    begins, ends = threading.Event(), threading.Event()

    def sweep_again() -> None:
        begins.set()
        with record.held(str(tmp_path)):
            ends.set()

    with record.held(str(tmp_path)):
        with pytest.raises(UsageError, match="still goes on"), record.held(str(tmp_path)):
            pass
        monkeypatch.setenv("SLURM_JOB_ID", "2")
        thread = threading.Thread(target=sweep_again)
        thread.start()
        assert begins.wait(10)
        assert not ends.wait(0.2)
    assert ends.wait(10)
    thread.join()


def test_picture_has_a_plot_for_each_parameter(tmp_path: Path) -> None:
    """A parameter whose values are no numbers has their names below its axis."""
    pytest.importorskip("matplotlib")
    asked = question(tmp_path, parameters=["optimizer=sgd,adam", "lr=1,0.01"])
    told = [trial(0, [0.5]), trial(1, [math.nan]), trial(2, [0.25])]
    for each, optimizer in zip(told, ("sgd", "adam", "adam"), strict=True):
        each.values.update(optimizer=optimizer, lr="0.01")
    assert table.draw(asked, told) == os.path.relpath(tmp_path / "sweep.png")
    drawn = (tmp_path / "sweep.svg").read_text()
    assert all(f">{word}<" in drawn for word in ("sgd", "adam", "optimizer", "lr", "x", "best"))
    assert table.draw(asked, told[1:2]) == ""
