"""`echelon sweep` as a user runs it: trials side by side, a training, what is stopped, killed and goes on."""

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.runs import ECHELON, hear_interrupts, left_behind

from echelon.errors import UsageError
from echelon.trials.sweep.source import OptunaTrials

PRINTS = """
import os, sys, time
width, rate = int(sys.argv[1]), float(sys.argv[2])
print(f"val_loss={9 / width:.3f}")
if width == 8:
    raise ValueError("too wide")
while rate == 0.1 and not os.path.exists("last"):  # the first trial ends after the last one has begun
    time.sleep(0.01)
if rate == 0.3 and width == 4:
    open("last", "w").close()
print(f"val_loss={rate / width:.3f}")
"""
TRAINS = """
import sys, torch
torch.manual_seed(0)
inputs = torch.randn(64, 4)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]))
for epoch in range(3):
    for batch, target in torch.utils.data.DataLoader(data, batch_size=16):
        optimizer.zero_grad()
        loss = (model(batch) - target).square().mean()
        loss.backward()
        optimizer.step()
print(f"{loss.item():.4g}")
"""
SLOWLY = """        print("x", epoch, flush=True)
        import os, time
        time.sleep(0 if os.path.exists("go") else 0.2)
"""
WAITS = """
import os, sys, time
print("x", sys.argv[1], flush=True)
while sys.argv[1] != "0" and not os.path.exists("go"):
    time.sleep(0.01)
"""
WORDS = ("--out", "swept", "--slots", "2", "--metric", "x", "-p", "n=0:3", "train.py", "{n}")
ENDLESS = """
import sys, time
print("score", sys.argv[1], flush=True)
while sys.argv[1] == "0":
    time.sleep(0.1)
"""


def sweep(folder: Path, *words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    return warm.run(["-m", "echelon", "sweep", *words], cwd=folder, environ={**os.environ, **environ})


def trials(folder: Path) -> list[dict[str, Any]]:
    told: dict[str, Any] = json.loads((folder / "swept" / "sweep.json").read_text())
    return list(told["trials"])


def test_trials_run_side_by_side(tmp_path: Path) -> None:
    """No slot waits for the slowest trial; a failure is one line, and the table begins with the best."""
    (tmp_path / "train.py").write_text(PRINTS)
    words = ["--slots", "2", "-p", "rate=0.1,0.3", "-p", "width=4:8:log2", "--metric", "val_loss", "--out", "swept"]
    done = sweep(tmp_path, *words, "--", "train.py", "{width}", "{rate}")
    assert done.returncode == 0, done.stderr
    head, *rows = (line.split() for line in done.stdout.splitlines())
    assert head == ["trial", "rate", "width", "val_loss", "state", "run", "took"]
    assert [row[:4] for row in rows] == [
        ["0", "0.1", "4", "0.025"], ["2", "0.3", "4", "0.075"], ["1", "0.1", "8", "1.125"], ["3", "0.3", "8", "1.125"],
    ]  # fmt: skip
    said = done.stderr.splitlines()
    assert said[0] == "echelon: 4 trials, 2 runs of 1 rank side by side; the sweep is in swept"
    failed = "echelon: trial 1 of 4: rate=0.1 width=8: failed (1): error in the script: ValueError: too wide · "
    assert said[1].startswith(failed)
    assert sum(line.startswith("echelon: trial ") for line in said) == 4
    assert "4 trials: 2 ended well, 2 failed · best val_loss 0.025: rate=0.1 width=4 · " in said[-1]
    assert (tmp_path / "swept" / "sweep.png").exists() == (find_spec("matplotlib") is not None)


def test_each_slot_has_its_own_devices_and_variables(tmp_path: Path) -> None:
    """A run sees its devices alone, and its values without an argument."""
    names = ["CUDA_VISIBLE_DEVICES", "WORLD_SIZE", "ECHELON_SWEEP_A_B", "ECHELON_SWEEP_TRIAL", "ECHELON_SWEEP_FOLDER"]
    (tmp_path / "train.py").write_text(f"import os, sys\nprint(*map(os.environ.get, {names}), *sys.argv[1:])")
    words = ["--gpus-per-run", "2", "-p", "a.b=x,y", "--out", "swept", "train.py", "{trial}", "{folder}"]
    done = sweep(tmp_path, *words, CUDA_VISIBLE_DEVICES="4,5,6,7")
    assert done.returncode == 0, done.stderr
    assert "note: no argument has {a.b}; the script can read it from ECHELON_SWEEP_A_B" in done.stderr
    assert "note: 2 trials told no loss; with --metric NAME a line of the script is `NAME 0.31`" in done.stderr
    for number, devices in enumerate(["4,5", "6,7"]):
        folder = tmp_path / "swept" / f"trial-{number}"
        told = (folder / "logs" / "attempt-0" / "rank-0.log").read_text().split()
        assert told == [devices, "2", "xy"[number], str(number), str(folder), str(number), str(folder)]


def test_training_is_compared_by_its_loss(tmp_path: Path) -> None:
    """Without --metric, the last loss that echelon has measured counts."""
    (tmp_path / "train.py").write_text(TRAINS)
    done = sweep(tmp_path, "--ranks-per-run", "2", "-p", "lr=0.01,0.1", "--out", "swept", "train.py", "{lr}")
    assert done.returncode == 0, done.stderr
    logs = [tmp_path / "swept" / f"trial-{number}" / "logs" / "attempt-0" / "rank-0.log" for number in (0, 1)]
    printed = [float(log.read_text().split()[-1]) for log in logs]
    assert [trial["metric"] for trial in trials(tmp_path)] == pytest.approx(printed, rel=1e-3)
    assert f"best loss {trials(tmp_path)[1]['metric']:.6g}: lr=0.1" in done.stderr


def test_trial_worse_than_the_median_is_stopped(tmp_path: Path) -> None:
    """The last trial ends only because it is stopped; larger is better."""
    (tmp_path / "train.py").write_text(ENDLESS)
    words = ["--metric", "score", "--maximize", "--stop", "median", "-p", "n=9,8,7,6,5,0", "--out", "swept"]
    done = sweep(tmp_path, *words, "train.py", "{n}")
    assert done.returncode == 0, done.stderr
    assert [trial["state"] for trial in trials(tmp_path)] == ["ended well"] * 5 + ["stopped"]
    assert "trial 5 of 6: n=0: stopped at score 0: worse than the median · " in done.stderr
    assert "5 ended well, 1 stopped · best score 9: n=9" in done.stderr


def test_sweep_without_a_good_trial_fails(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nsys.exit(int(sys.argv[1]))")
    done = sweep(tmp_path, "-p", "n=3,4", "--out", "swept", "train.py", "{n}")
    assert done.returncode == 3, done.stderr
    assert "2 trials: 2 failed" in done.stderr


def test_what_run_refuses_is_refused_before_any_trial(tmp_path: Path) -> None:
    done = sweep(tmp_path, "-p", "n=3,4", "--out", "swept", "trian.py", "{n}")
    assert done.returncode == 2
    assert done.stderr.startswith("echelon: error: there is no script trian.py")
    assert os.listdir(tmp_path) == []


def begun(
    folder: Path, script: str = WAITS, words: Sequence[str] = WORDS, num_told: int = 3
) -> "subprocess.Popen[str]":
    """Start a sweep, and return it when so many trials have told something; of `WAITS`, two wait for their ends."""
    (folder / "train.py").write_text(script)
    process = subprocess.Popen(
        [*ECHELON, "sweep", *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=hear_interrupts,
    )  # fmt: skip
    until(lambda: len([log for log in folder.glob("swept/*/logs/*/*.log") if log.read_text()]) == num_told, process)
    return process


def until(met: Callable[[], bool], process: "subprocess.Popen[str] | None" = None) -> None:
    deadline = time.monotonic() + 60
    while not met():
        assert time.monotonic() < deadline and (process is None or process.poll() is None)
        time.sleep(0.02)


def test_interrupted_sweep_goes_on(tmp_path: Path) -> None:
    """Ctrl-C ends the trials in order; --resume runs those without a result, and only them."""
    process = begun(tmp_path)
    still = sweep(tmp_path, "--resume", "swept")
    assert (still.returncode, still.stderr.splitlines()[1]) == (2, "  hint: wait for its end, or stop it")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "SIGINT: the trials end; a second kills them at once" in said
    assert "4 trials: 1 ended well, 3 waiting · best x 0: n=0" in said
    assert "the others go on with: echelon sweep --resume swept" in said
    assert left_behind(str(tmp_path)) == []
    (tmp_path / "go").touch()
    done = sweep(tmp_path, "--resume", "swept")
    assert done.returncode == 0, done.stderr
    assert [trial["run"] for trial in trials(tmp_path)] == ["trial-0", "trial-1-1", "trial-2-1", "trial-3"]
    assert [trial["metric"] for trial in trials(tmp_path)] == [0, 1, 2, 3]


def test_trial_that_is_told_to_end_saves_first(tmp_path: Path) -> None:
    """With --checkpoint-every, SIGTERM loses no step: the next run goes on after the last one."""
    script = TRAINS.replace("        optimizer.step()\n", f"        optimizer.step()\n{SLOWLY}")
    words = ["--out", "swept", "--metric", "x", "-p", "lr=0.1", "--checkpoint-every", "1h", "train.py", "{lr}"]
    process = begun(tmp_path, script.replace("range(3)", "range(9)"), words, num_told=1)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, "1 trial: 1 waiting" in said) == (128 + signal.SIGTERM, True), said
    (tmp_path / "go").touch()
    done = sweep(tmp_path, "--resume", "swept")
    assert done.returncode == 0, done.stderr
    first, second = (
        (tmp_path / "swept" / run / "logs" / "attempt-0" / "rank-0.log").read_text() for run in ("trial-0", "trial-0-1")
    )
    told = [line for line in (first + second).splitlines() if line.startswith("x ")]
    assert told == [f"x {epoch}" for epoch in range(9) for _ in range(4)]
    assert first.count("x ") < 36


def test_warned_sweep_begins_no_trial(tmp_path: Path) -> None:
    """The signal before a time limit reaches the trials, which may save and end; --resume runs them and the others."""
    process = begun(tmp_path)
    process.send_signal(signal.SIGUSR1)
    heard = '"event": "signal", "number": 10'
    until(lambda: any(heard in path.read_text() for path in tmp_path.glob("swept/trial-2*/events.jsonl")), process)
    (tmp_path / "go").touch()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGUSR1
    assert "SIGUSR1: the trials hear it too, and no other begins" in said
    assert "4 trials: 1 ended well, 3 waiting" in said
    assert sweep(tmp_path, "--resume", "swept").returncode == 0
    assert [trial["metric"] for trial in trials(tmp_path)] == [0, 1, 2, 3]


def test_killed_sweep_leaves_no_run_and_goes_on(tmp_path: Path) -> None:
    """Its own line goes on too, as a job that is submitted again; another line is refused."""
    process = begun(tmp_path)
    process.kill()
    process.communicate(timeout=60)
    assert left_behind(str(tmp_path), seconds=60) == []
    (tmp_path / "go").touch()
    other = sweep(tmp_path, *WORDS, "more")
    assert other.returncode == 2
    assert "error: --out swept has a sweep with another command line: --out swept --slots 2" in other.stderr
    done = sweep(tmp_path, *WORDS)
    assert done.returncode == 0, done.stderr
    assert "4 trials: 4 ended well" in done.stderr
    assert [trial["run"] for trial in trials(tmp_path)] == ["trial-0", "trial-1-1", "trial-2-1", "trial-3"]


def test_optuna_goes_on_with_what_it_has_heard(tmp_path: Path) -> None:
    """Another process hears the results of the first half, and suggests the rest."""
    (tmp_path / "train.py").write_text("import sys\nprint('x', (float(sys.argv[1]) - 3) ** 2)")
    words = ["--sampler", "optuna", "--metric", "x", "--samples", "14", "-p", "n=0:100.0", "--out", "swept"]
    done = sweep(tmp_path, *words, "train.py", "{n}")
    assert done.returncode == 0, done.stderr
    whole, file = trials(tmp_path), tmp_path / "swept" / "sweep.json"
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, "trials": told["trials"][:7]}))
    assert sweep(tmp_path, "--resume", "swept").returncode == 0
    assert len(trials(tmp_path)) == len({trial["values"]["n"] for trial in whole}) == 14
    assert trials(tmp_path)[:7] == whole[:7]
    assert all(trial["state"] == "ended well" for trial in trials(tmp_path))


def test_optuna_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echelon.trials.sweep.source.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match="Optuna, which is not installed here") as caught:
        OptunaTrials([], [], number=4, seed=0, sign=1)
    assert caught.value.hint == "pip install optuna   or --sampler random"


def test_table_on_a_terminal_shows_the_running_trials(tmp_path: Path) -> None:
    """The running trials stand below the lines of those that ended, and are gone at the end."""
    (tmp_path / "train.py").write_text(WAITS)
    above, below = pty.openpty()
    words = ["sweep", "--out", "swept", "--metric", "x", "-p", "n=0:1", "train.py", "{n}"]
    process = subprocess.Popen(
        [*ECHELON, *words], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=below, stdin=below,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
    )  # fmt: skip
    os.close(below)
    shown = b""
    while select.select([above], [], [], 30.0)[0]:
        try:
            shown += os.read(above, 4096)
        except OSError:  # it has ended
            break
        if b"n=1" in shown and b"slot 0" in shown.rpartition(b"trial 0 of 2")[2]:
            (tmp_path / "go").touch()
    process.terminate()
    assert process.wait(timeout=30) == 0
    screen = shown.decode()
    first, last = screen.index("trial 0 of 2: n=0: x 0"), screen.index("trial 1 of 2: n=1: x 1")
    assert first < screen.rindex("trial  slot") < last
