"""An unchanged script that is killed goes on at the step of its checkpoint, on as many ranks as there are then."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import warm
from tests.tiers import in_all, some

from echelon.orders import codec, rehearsal
from echelon.orders.rehearsal import FILL_DISK, KILL_RANK, Fault, Rehearsal
from echelon.train.replay.tape import JUMP, PLAY, Journal

SCRIPT = Path(__file__).with_name("classify.py")
CLOSE = 2e-5
"""Ranks sum in another order than one device does."""


class Folder:
    """A folder in which a script runs."""

    def __init__(self, path: Path, script: Path = SCRIPT, *arguments: str) -> None:
        self.path = path
        self.words = [str(script), *arguments]
        path.mkdir()

    def plain(self) -> "subprocess.CompletedProcess[str]":
        return warm.run(self.words, cwd=self.path, environ=_environ())

    def run(self, num_ranks: int, *options: str, **fault: Any) -> "subprocess.CompletedProcess[str]":
        return self.rehearse(num_ranks, Rehearsal(Fault(**fault)) if fault else None, *options)

    def rehearse(self, num_ranks: int, order: "Rehearsal | None", *options: str) -> "subprocess.CompletedProcess[str]":
        more = {rehearsal.VARIABLE: codec.write(order)} if order is not None else {}
        line = ["-m", "echelon", "run", "-n", str(num_ranks), "--timeout", "90", *options, *self.words]
        return warm.run(line, cwd=self.path, environ={**_environ(), **more})


def _environ() -> "dict[str, str]":
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def numbers(text: str) -> "dict[str, list[float]]":
    """Return the numbers of each line, by the line's first two words; a line that is printed again counts."""
    lines = [line.split() for line in text.splitlines() if line.startswith(("step", "epoch", "mean"))]
    return {
        " ".join(words[: 1 if words[0] == "mean" else 2]): [float(word) for word in words[2:] if _is_number(word)]
        for words in lines
    }


def losses(text: str) -> "list[str]":
    """Return the loss of each step as it is printed; a step that is printed again counts."""
    return list(dict(re.findall(r"^(step \d+) loss (\S+)", text, re.MULTILINE)).values())


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-?[0-9.]+(e-?[0-9]+)?", word) is not None


def assert_same(found: str, wanted: str) -> None:
    here, there = numbers(found), numbers(wanted)
    assert here.keys() == there.keys()
    for name, values in there.items():
        assert here[name] == pytest.approx(values, abs=CLOSE, rel=CLOSE), name


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> "tuple[str, Path]":
    folder = Folder(tmp_path_factory.mktemp("plain") / "run")
    done = folder.plain()
    assert done.returncode == 0, done.stderr
    return done.stdout, folder.path


KILLED = [(1, 1, 20), (1, 2, 31), (2, 1, 26), (2, 3, 14), (3, 2, 45), (2, 2, 7)]


@pytest.mark.parametrize(("before", "after", "step"), some(KILLED, 6, first=1))
def test_killed_run_is_resumed_on_other_ranks(
    tmp_path: Path, undisturbed: "tuple[str, Path]", before: int, after: int, step: int
) -> None:
    folder = Folder(tmp_path / "run")
    options = ("--checkpoint-every", "3steps")
    first = folder.run(before, *options, "--max-restarts", "0", "--run-dir", "one", kind=KILL_RANK, rank=0, step=step)
    assert first.returncode == 137, first.stderr
    second = folder.run(after, *options, "--resume", "one")
    assert second.returncode == 0, second.stderr
    saved = int(re.search(r"continues after step (\d+)", second.stderr)[1])  # type: ignore[index]
    assert 3 <= saved <= step + 6
    assert saved == 3 or "; its variables were put back in " in second.stderr
    assert min(int(name[5:]) for name in numbers(second.stdout) if name.startswith("step")) == saved
    assert_same(first.stdout + second.stdout, undisturbed[0])
    _assert_same_files(folder.path, undisturbed[1])


def _assert_same_files(path: Path, other: Path) -> None:
    assert len((path / "log.csv").read_text().splitlines()) == len((other / "log.csv").read_text().splitlines())
    here, there = (torch.load(one / "model.pt", weights_only=True) for one in (path, other))
    for name, tensor in there.items():
        torch.testing.assert_close(here[name], tensor, atol=1e-4, rtol=1e-4)
    assert (path / "best.pt").is_file()


@pytest.mark.tier("all")
def test_killed_rank_ends_no_run(tmp_path: Path, undisturbed: "tuple[str, Path]") -> None:
    folder = Folder(tmp_path / "run")
    done = folder.run(2, "--checkpoint-every", "0.2s", "--run-dir", "one", kind=KILL_RANK, rank=1, step=40)
    assert done.returncode == 0, done.stderr
    assert "continues after step" in done.stderr
    assert_same(done.stdout, undisturbed[0])
    report = json.loads((folder.path / "one/report.json").read_text())
    assert report["restarts"] == 1


CHANGED = """
import argparse, itertools, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--cycle", action="store_true")
options = parser.parse_args()
torch.manual_seed(2)
x = torch.randn(48, 4)
batches = DataLoader(TensorDataset(x), batch_size=8, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen, names = [], itertools.cycle("ab") if options.cycle else None
for epoch in range(options.epochs):
    for (a,) in batches:
        optimizer.zero_grad()
        loss = (model(a) - a.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
        print(f"step {len(seen) - 1} loss {seen[-1]:.7f} of {options.epochs} {next(names) if names else 1}", flush=True)
"""


SCRIPTED = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


@torch.jit.script
def positive(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, torch.zeros_like(x))


@torch.jit.script
def total(x: torch.Tensor) -> float:
    return float(torch.cat([positive(x), torch.ones([x.shape[0], 1])], 1).sum().item())


x = torch.randn(80, 6)
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step, mean = 0, 0.0
for (rows,) in DataLoader(TensorDataset(x), batch_size=4, shuffle=True):
    loss = model(rows).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step, mean = step + 1, mean + total(model.weight.detach())
    print(f"step {step} loss {loss.item():.6f},{mean:.6f}")
"""


def test_scripted_functions_are_compiled_and_repeated(tmp_path: Path) -> None:
    """TorchScript sees PyTorch's own functions, and what a scripted function reads from a tensor is kept."""
    (tmp_path / "scripted.py").write_text(SCRIPTED)
    undisturbed, folder = (Folder(tmp_path / name, tmp_path / "scripted.py") for name in ("plain", "run"))
    done = folder.run(1, "--checkpoint-every", "6steps", kind=KILL_RANK, rank=0, step=15)
    assert done.returncode == 0, done.stderr
    assert "its variables were put back in" in done.stderr
    assert losses(done.stdout) == losses(undisturbed.plain().stdout)


def test_jump_leaves_what_the_loop_has_not_changed(tmp_path: Path) -> None:
    """A training is prolonged by an argument, and its journal does not grow with its steps."""
    script = tmp_path / "changed.py"
    script.write_text(CHANGED)
    undisturbed, folder = Folder(tmp_path / "plain", script, "--epochs", "7"), Folder(tmp_path / "run", script)
    folder.words += ["--epochs", "4"]
    first = folder.run(1, "--checkpoint-every", "5steps", "--run-dir", "one", kind=KILL_RANK, rank=0, step=23)
    assert first.returncode == 0, first.stderr
    folder.words[-1] = "7"
    second = folder.run(1, "--checkpoint-every", "5steps", "--resume", "one")
    assert second.returncode == 0, second.stderr
    assert "its variables were put back in" in second.stderr
    assert losses(first.stdout + second.stdout) == losses(undisturbed.plain().stdout)
    folder.words[-1] = "2"  # fewer than the checkpoint has behind it
    refused = folder.run(1, "--checkpoint-every", "5steps", "--resume", "one")
    assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)
    assert "the script goes another way than before the checkpoint: the loop has" in refused.stderr
    journal = Journal()
    journal.load((max((folder.path / "one/checkpoints").glob("step-*")) / "journal.bin").read_bytes())
    journal.phase = PLAY
    assert journal.next_kind() == JUMP
    journal.skip()
    assert journal.is_over


def test_what_makes_a_resume_slow_is_told_at_the_first_save(tmp_path: Path) -> None:
    script = tmp_path / "changed.py"
    script.write_text(CHANGED)
    folder = Folder(tmp_path / "run", script, "--epochs", "4", "--cycle")
    done = folder.run(1, "--checkpoint-every", "5steps", kind=KILL_RANK, rank=0, step=17)
    assert done.returncode == 0, done.stderr
    assert (
        "note: a run that continues from this loop repeats its steps without computing: changed.py:18: `names`: "
        in (done.stderr)
    )
    assert "; the steps before it were repeated without computing in" in done.stderr
    assert_same(done.stdout, folder.plain().stdout)


AFTER_EPOCH = """
import os, pathlib, signal, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def fit(epochs):
    torch.manual_seed(4)
    x = torch.randn(96, 6)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=12, shuffle=True)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        for a, b in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            size = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        while epoch == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            time.sleep(0.05)
            if pathlib.Path("one/checkpoints/step-000000016/manifest.json").exists():
                os.kill(os.getpid(), signal.SIGKILL)
        print(f"epoch {epoch} gradient {size:.5f}", flush=True)


fit(3)
"""


def test_killed_between_an_epoch_and_its_print(tmp_path: Path) -> None:
    """A number that the last step left in a variable of a function is the number of the undisturbed run."""
    script = tmp_path / "after.py"
    script.write_text(AFTER_EPOCH)
    folder = Folder(tmp_path / "run", script)
    done = folder.run(2, "--checkpoint-every", "8steps", "--run-dir", "one")
    assert done.returncode == 0, done.stderr
    assert "continues after step 16" in done.stderr
    assert_same(done.stdout, folder.plain().stdout)


SAME_SUMS = """
import os
import signal
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
x = torch.randn(240, 16)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.first = nn.Linear(32, 1), nn.Linear(16, 32)  # gradients are ready in another order

    def forward(self, x):
        return self.last(nn.functional.dropout(self.first(x).relu()))


model = Model()
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
step = 0
for number, (a,) in enumerate(DataLoader(TensorDataset(x), batch_size=12, shuffle=True)):
    loss = (model(a) - a.sin().sum(1, keepdim=True)).pow(2).mean() / 2
    loss.backward()
    if number % 2:
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.9g}", flush=True)
        step += 1
        if step == 8 and "killed" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            time.sleep(1)  # the memory of the node has a newer state than the disk
            os.kill(os.getpid(), signal.SIGKILL)
print("mean weight", sum(p.double().sum().item() for p in model.parameters()), flush=True)
"""


@pytest.mark.parametrize(("num_ranks", "options"), [(2, ()), in_all(3, ()), in_all(2, ("--exact", "4"))])
def test_sums_have_the_same_order(tmp_path: Path, num_ranks: int, options: "tuple[str, ...]") -> None:
    """Gradients that are added up over two backwards, and over three ranks, have the bits of an undisturbed run."""
    script = tmp_path / "same.py"
    script.write_text(SAME_SUMS)
    undisturbed, folder = Folder(tmp_path / "undisturbed", script), Folder(tmp_path / "run", script, "killed")
    options = ("--checkpoint-every", "4steps", *options)
    wanted = undisturbed.run(num_ranks, *options)
    done = folder.run(num_ranks, *options)
    assert done.returncode == 0, done.stderr
    assert "continues after step" in done.stderr
    assert numbers(done.stdout) == numbers(wanted.stdout)


def test_error_of_the_script_twice_ends_the_run(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    text = SCRIPT.read_text().replace("        step += 1\n", "        step += 1\n        assert step < 30, 'stop'\n")
    script.write_text(text)
    done = Folder(tmp_path / "run", script).run(2, "--checkpoint-every", "4steps")
    assert done.returncode == 1
    assert "the same error twice: AssertionError: stop (fails.py:" in done.stderr


@pytest.mark.tier("all")
def test_workers_load_only_what_is_left(tmp_path: Path, undisturbed: "tuple[str, Path]") -> None:
    folder = Folder(tmp_path / "run", SCRIPT, "2")
    wanted = folder.plain()
    done = folder.run(2, "--checkpoint-every", "5steps", kind=KILL_RANK, rank=0, step=33)
    assert done.returncode == 0, done.stderr
    assert_same(done.stdout, wanted.stdout)


def test_full_disk_ends_no_training(tmp_path: Path, undisturbed: "tuple[str, Path]") -> None:
    folder = Folder(tmp_path / "run")
    done = folder.run(2, "--checkpoint-every", "5steps", "--run-dir", "one", kind=FILL_DISK, rank=0, step=22)
    assert done.returncode == 0, done.stderr
    assert "the disk is full" in done.stderr
    assert_same(done.stdout, undisturbed[0])
    assert warm.run(["-m", "echelon", "checkpoint", "verify", "one"], cwd=folder.path).returncode == 0


@pytest.mark.tier("all")
def test_exact_training_has_the_same_bits(tmp_path: Path) -> None:
    undisturbed, folder = Folder(tmp_path / "undisturbed"), Folder(tmp_path / "run")
    wanted = undisturbed.run(2, "--exact", "4")
    done = folder.run(2, "--exact", "4", "--checkpoint-every", "5steps", kind=KILL_RANK, rank=1, step=33)
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout) == losses(wanted.stdout)
    assert_same(done.stdout, wanted.stdout)  # also its running mean, a tensor of losses that a save adds up
    here, there = (torch.load(one.path / "model.pt", weights_only=True) for one in (folder, undisturbed))
    assert all(torch.equal(here[name], tensor) for name, tensor in there.items())


def test_order_that_the_script_draws(tmp_path: Path) -> None:
    """Python and numpy, from which the left-out loading draws too, give the script the same numbers again."""
    script = Path(__file__).with_name("own_order.py")
    undisturbed, folder = Folder(tmp_path / "undisturbed", script), Folder(tmp_path / "run", script)
    wanted = undisturbed.plain()
    done = folder.run(1, "--checkpoint-every", "4steps", kind=KILL_RANK, rank=0, step=37)
    assert done.returncode == 0, done.stderr
    assert "continues after step" in done.stderr
    assert numbers(done.stdout) == numbers(wanted.stdout)
