"""What `echelon report --track` and `echelon run --track` write, read back by TensorBoard's own reader."""

import json
import os
import signal
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests import warm
from tests.runs import Run

from echelon.jobs.course import OF_JOB
from echelon.launch.prepare import prepare
from echelon.monitor.track import configuration
from echelon.monitor.track.follow import Follower, alone
from echelon.monitor.track.points import CurvePoints
from echelon.script.reading import ScriptReading
from echelon.spec import Command, Job, Tracker

from .test_report import BEGAN, Generated

TRAINING = """\
import os, sys, time
import torch

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(64, 8))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for (x,) in loader:
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        while os.path.exists("stay"):
            time.sleep(0.01)
        if epoch == 2 and "--fail" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("a mistake")
"""
BY_STEP = ("loss", "step_seconds", "samples_per_second", "data_seconds", "backward_seconds")


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what TensorBoard shows of a folder: the steps and values of each name."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reader = accumulator.EventAccumulator(str(folder))
    reader.Reload()
    return {tag: [(each.step, each.value) for each in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def text(folder: Path) -> str:
    """Return the text that TensorBoard shows of the configuration."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reader = accumulator.EventAccumulator(str(folder))
    reader.Reload()
    (event,) = reader.Tensors("configuration")
    return bytes(event.tensor_proto.string_val[0]).decode()


class Sampled(Generated):
    """A run directory of one rank with samples and exits, at one step a second."""

    def attempt(self, number: int, steps: range, *, continued: int = 0) -> None:
        """Write an attempt that makes these steps, each of which is seen; `continued` is where it goes on."""
        self.event("attempt", 1.0, number=number, ranks=1)
        logs = self.folder / "logs" / f"attempt-{number}"
        logs.mkdir(parents=True)
        head = f"echelon: continues after step {continued}, from a checkpoint\n" if continued else ""
        (logs / "rank-0.log").write_text(head)
        began = self.now + 1.0
        for made, step in enumerate(steps, 1):
            self.now += 1.0
            self._sample(number, made, step)
        last = {"measures": self._measures(len(steps), steps[-1]), "first_step": began, "last_step": self.now}
        self.event("exit", 0.0, rank=0, status=0, steps=len(steps), step_times=[], **last)

    def _sample(self, number: int, made: int, step: int) -> None:
        measures = self._measures(made, step)
        row = {"time": self.now, "attempt": number, "ranks": 1, "steps": made, "loss": 1.0 / step}
        row |= {"samples": measures["samples"], "measures": measures}
        with open(self.folder / "samples.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")

    @staticmethod
    def _measures(made: int, step: int) -> dict[str, float]:
        passed = made - 1.0
        return {
            "loss": 1.0 / step,
            "samples": 8 * passed,
            "step_seconds": passed,
            "data_seconds": passed / 4,
            "peak_resident_bytes": 1e6,
        }


def test_steps_that_are_computed_again_come_once(tmp_path: Path) -> None:
    """An attempt made 10 steps, the next one went on after step 6 to step 14: the curve has each of 14 steps once."""
    run = Sampled(tmp_path / "run")
    run.attempt(0, range(1, 11))
    run.event("restart", 0.0, cause="error in the script", rank=0)
    run.attempt(1, range(7, 15), continued=6)
    points = CurvePoints(str(run.folder)).look()
    assert [point.step for point in points] == list(range(1, 15))
    assert [point.values["loss"] for point in points] == pytest.approx([1 / step for step in range(1, 15)])
    assert points[-1].values["step_seconds"] == pytest.approx(1.0)
    assert points[-1].values["samples_per_second"] == pytest.approx(8.0)
    assert points[-1].values["peak_resident_bytes"] == 1e6
    assert points[-1].values["data_seconds"] == pytest.approx(0.25)


def test_what_is_written_is_not_written_again(tmp_path: Path) -> None:
    """A tracker that gets a run twice, the second time with more steps, has each step once."""
    run = Sampled(tmp_path / "run")
    run.attempt(0, range(1, 6))
    tracker, said = Tracker(name="tensorboard", where=str(tmp_path / "shown")), []
    Follower(str(run.folder), [tracker], said.append).end(None)
    run.event("restart", 0.0, cause="error in the script", rank=0)
    run.attempt(1, range(4, 9), continued=3)
    run.event("end", 0.0, exit_code=0)
    for _ in range(2):
        Follower(str(run.folder), [tracker], said.append).end(0)
    shown = curves(tmp_path / "shown" / "run")
    assert [step for step, _ in shown["loss"]] == list(range(1, 9))
    assert shown["run/seconds"] == [(8, pytest.approx(run.now - BEGAN - 1.0, rel=0.01))]
    assert said[0].startswith("tensorboard: 5 points up to step 5 · tensorboard --logdir ")
    assert said[-1].startswith("tensorboard: 8 points up to step 8 · ")


def test_next_job_of_a_chain_goes_on(tmp_path: Path) -> None:
    """Its files are new, and its steps begin where the job before was saved: the curve has each step once."""
    run = Sampled(tmp_path / "run")
    tracker = Tracker(name="tensorboard")
    run.attempt(0, range(1, 6))
    Follower(str(run.folder), [tracker], print).end(0)
    (run.folder / "jobs" / "1").mkdir(parents=True)
    for name in OF_JOB:
        if (run.folder / name).exists():
            (run.folder / name).rename(run.folder / "jobs" / "1" / name)
    run.events = []
    run.attempt(0, range(4, 9), continued=3)
    Follower(str(run.folder), [tracker], print).end(0)
    assert [step for step, _ in curves(run.folder / "tensorboard")["loss"]] == list(range(1, 9))


def test_tracker_that_fails_leaves_the_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A folder that cannot be made is one line with the reason and the repair; the other tracker has the run."""
    run = Sampled(tmp_path / "run")
    run.attempt(0, range(1, 6))
    (tmp_path / "file").write_text("")
    trackers = [Tracker(name="tensorboard", where=str(tmp_path / name)) for name in ("file", "shown")]
    with alone(str(run.folder)) as say:
        follower = Follower(str(run.folder), trackers, say)
        follower.end(1)
        os.write(1, b"a library that talks\n")
        os.system("echo and its process")
    assert follower.num_failed == 1
    stopped, written = capfd.readouterr().out.splitlines()
    assert stopped.startswith(f"note: --track tensorboard:{tmp_path}/file has stopped: NotADirectoryError: ")
    assert stopped.endswith(f"run --track tensorboard:{tmp_path}/file writes the rest")
    assert written.startswith("tensorboard: 5 points")
    assert (run.folder / "track.log").read_text() == "a library that talks\nand its process\n"
    assert len(curves(tmp_path / "shown" / "run")["loss"]) == 5


def test_run_with_tensorboard(tmp_path: Path) -> None:
    """A run of two ranks, with a failure and a restart from a checkpoint, has one curve and its arguments there."""
    (tmp_path / "train.py").write_text(TRAINING)
    words = ["run", "--run-dir", "run", "--no-pool", "-n", "2", "--checkpoint-every", "5steps", "--max-restarts", "1"]
    done = warm.run(
        ["-m", "echelon", *words, "--track", "tensorboard", "train.py", "--lr", "0.1", "--fail"], cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "run" / "tensorboard"
    assert " points up to step 24 · tensorboard --logdir run/tensorboard\n" in done.stderr
    shown = curves(folder)
    steps = [step for step, _ in shown["loss"]]
    assert steps == sorted(set(steps))
    assert steps[-1] == 24
    assert set(BY_STEP) <= set(shown)
    assert all(value > 0 for name in BY_STEP for _, value in shown[name])
    configured = text(folder)
    assert "| lr | 0.1 |\n| fail | true |\n| echelon.command | train.py --lr 0.1 --fail |" in configured
    assert "| echelon.ranks | 2 |" in configured


def test_run_goes_on_without_its_tracker(tmp_path: Path) -> None:
    """The process that writes is killed: one line says so with the repair, which writes the rest."""
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "stay").write_text("")
    run = Run(tmp_path, "--no-pool", "--track", f"tensorboard:{tmp_path / 'shown'}", "train.py", is_forked=True)
    run.until_started(1)
    os.kill(_trackers(run)[0], signal.SIGKILL)
    (tmp_path / "stay").unlink()
    exit_code, _, said = run.finish()
    assert exit_code == 0, said
    repair = f"echelon report run --track tensorboard:{tmp_path / 'shown'}"
    assert f"echelon: note: the process that writes to trackers was killed by SIGKILL; {repair} writes the rest" in said
    assert not (tmp_path / "shown").exists()
    done = warm.run(["-m", *repair.split()], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert curves(tmp_path / "shown" / "run")["loss"][-1][0] == 24


def _trackers(run: Run) -> list[int]:
    """Return the processes that the supervisor started beside its agent."""
    (supervisor,), agents = run.events("supervisor"), run.events("agent")
    children = Path(f"/proc/{supervisor['pid']}/task/{supervisor['pid']}/children").read_text().split()
    return [int(child) for child in children if agents and int(child) != agents[0]["pid"]]


@pytest.mark.parametrize(
    ("line", "tracker", "sign"),
    [
        ("import wandb", "wandb", "wandb"),
        ("from torch.utils.tensorboard import SummaryWriter", "tensorboard", "torch.utils.tensorboard"),
        ("import tensorboardX", "tensorboard", "tensorboardX"),
        ("def log():\n    import mlflow", "mlflow", "mlflow"),
        (
            "def log():\n    from lightning.pytorch.loggers import WandbLogger",
            "wandb",
            "lightning",
        ),
    ],
)
def test_script_that_logs_by_itself(tmp_path: Path, line: str, tracker: str, sign: str) -> None:
    """Its tracker gets nothing from echelon, and a note says why; the other trackers do."""
    script = tmp_path / "train.py"
    script.write_text(f"import torch\n{line}\n")
    command = Command(kind="script", target=str(script))
    asked = tuple(Tracker(name=name) for name in ("tensorboard", "mlflow", "wandb"))
    plan = prepare(Job(command=command, trackers=asked), reading=ScriptReading(command))
    assert [each.name for each in plan.trackers] == [each.name for each in asked if each.name != tracker]
    (note,) = [note for note in plan.notes if "--track" in note]
    assert note.startswith(f"--track {tracker} writes nothing: the script logs to it by itself (it imports {sign}")


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        ("comet", "--track comet: the choices are tensorboard, mlflow, wandb", "echelon run --track tensorboard …"),
        ("tensorboard:", "--track tensorboard:: give a folder after the colon", "--track tensorboard:runs"),
        ("wandb:http://h", "--track wandb:http://h: give a folder after the colon", "--track wandb:runs"),
        ("tensorboard:train.py/x", "--track tensorboard:train.py/x: a file is at {folder}/train.py",
         "--track tensorboard   writes into the run directory"),
        ("mlflow", f"--track mlflow needs the package mlflow-skinny, which {sys.executable} does not have",
         f"{sys.executable} -m pip install mlflow-skinny"),
    ],
)  # fmt: skip
def test_bad_trackers(tmp_path: Path, value: str, message: str, hint: str) -> None:
    """An unknown tracker, or one whose library is not there, is one error before the run."""
    (tmp_path / "train.py").write_text("")
    (tmp_path / "mlflow").mkdir()  # a folder of runs is no library
    if value == "mlflow" and _has("mlflow"):
        pytest.skip("MLflow is installed")
    done = warm.run(["-m", "echelon", "run", "--track", value, "train.py"], cwd=tmp_path)
    said = f"echelon: error: {message.replace('{folder}', str(tmp_path))}\n  hint: {hint}\n"
    assert (done.returncode, done.stderr) == (2, said)


def _has(module: str) -> bool:
    spec = find_spec(module)
    return spec is not None and spec.origin is not None


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--lr=3e-4", "--steps", "-5", "-v"], {"lr": "3e-4", "steps": "-5", "v": "true"}),
        (["+model.depth=2", "in.txt", "--name", "a b"], {"model.depth": "2", "argument.1": "in.txt", "name": "a b"}),
        (["--flag", "--x", "1", "--", "y"], {"flag": "true", "x": "1", "argument.1": "--", "argument.2": "y"}),
    ],
)
def test_names_of_arguments(words: list[str], named: Mapping[str, str]) -> None:
    """Each argument has the name that its form tells; one without a name has its place."""
    assert configuration.of_arguments(words) == named
