"""The first step is checked where there is a GPU: here with a stand-in for one, which is as strict as a driver is."""

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from tests import warm
from tests.conftest import FOREIGN
from tests.tiers import in_all, pick
from tests.train.check import stand_in

SCRIPTS = Path(__file__).parents[2] / "scripts"
ALL = sorted(path.stem for path in SCRIPTS.glob("*.py"))
SOME = ("checkpoint_resume", "functions_main", "gan", "random_batches", "workers")
NOT_COMPARED = "first step: not compared with one device: "
# why some scripts cannot be compared on any device
DRAWS = {"augmentation", "cnn_batchnorm", "iterable_workers", "vae", "diffusion"}

TRAINS = """
import os
import sys
import threading
import time

import torch
from torch import nn

torch.manual_seed(0)
begun, how = os.getpid(), sys.argv[1]
print("devices", torch.cuda.is_available(), torch.cuda.device_count(), "rank 0 is", begun)
os.makedirs("made", exist_ok=True) if how == "folder" else None
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if how == "thread":
    thread = threading.Thread(target=lambda: torch.zeros(2, device=device))
    thread.start()
    thread.join()
model, other = nn.Linear(4, 1).to(device), nn.Linear(4, 1).to(device)
if os.getpid() != begun:
    if how == "slow":
        time.sleep(60)
    if how == "killed":
        os.kill(os.getpid(), 9)
    if how == "fails":
        raise ValueError("this is one device")
    if how == "ends":
        sys.exit(0)
optimizers = [torch.optim.Adam(each.parameters(), lr=0.1) for each in (model, other)]
factor = 2 if how == "wrong" and os.getpid() == begun else 1
for step, x in enumerate(torch.utils.data.DataLoader(torch.randn(192, 4), batch_size=16)):
    x = x.to(device)
    for each, optimizer in zip((model, other), optimizers):
        if each is model or (how != "never" and step % 2):
            optimizer.zero_grad()
            loss = each(x).pow(2).mean()
            (loss * (factor if each is other else 1)).backward()
            optimizer.step()
open("out", "w").write("one writes")
print("done", os.getpid())
"""

LAYERS = """
import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


model = Model().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 8, device=device)).pow(2).mean().backward()
    optimizer.step()
"""


class Done(NamedTuple):
    """The result of a run of two ranks."""

    code: int
    out: str
    err: str
    log: list[list[str]]

    def begins(self, rank: int) -> list[int]:
        """Return which processes used the device of a rank, in their order."""
        return [int(pid) for word, pid, *of in self.log if word == "begin" and of == [str(rank)]]

    def assert_one_after_the_other(self) -> None:
        """An oracle has used rank 0's device and left it before rank 0 did, and no other process."""
        assert not [line for line in self.log if line[0] == "both"]
        assert len(self.begins(0)) == 2
        assert len(self.begins(1)) == 1


def run(folder: Path, script: Path, *arguments: str, options: tuple[str, ...] = (), **variables: str) -> Done:
    """Run a script on two ranks that believe in devices."""
    shutil.copy(stand_in.__file__, folder / "sitecustomize.py")
    shutil.copy(script, folder / script.name) if script.parent != folder else None
    environ = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    environ |= {"PYTHONPATH": str(folder), "STAND_IN_LOG": str(folder / "log"), "OMP_NUM_THREADS": "1", **variables}
    words = ["-m", "echelon", "run", "-n", "2", "--timeout", "100", "--scale", "data", *options, script.name]
    done = warm.run([*words, *arguments], cwd=folder, environ=environ)
    log = [line.split() for line in (folder / "log").read_text().splitlines()]
    return Done(done.returncode, done.stdout, done.stderr, log)


def train(folder: Path, how: str, options: tuple[str, ...] = (), **variables: str) -> Done:
    script = folder / "train.py"
    script.write_text(TRAINS)
    return run(folder, script, how, options=options, **variables)


@pytest.mark.parametrize("how", [in_all("plain"), "folder"])
def test_oracle_uses_the_device_first_and_leaves_it(tmp_path: Path, how: str) -> None:
    """The oracle is forked before rank 0 first uses its device, and is gone when rank 0 does; looking is no use.

    With a folder that is made before, ranks meet before any of them has used a device.
    """
    done = train(tmp_path, how)
    rank = int(done.out.split("rank 0 is")[1].split()[0])
    assert (done.code, done.out.count("devices True 2"), done.out.count("done")) == (0, 1, 1)
    assert "first step: equals that of one device" in done.err
    assert "for each of 2 optimizers" in done.err
    done.assert_one_after_the_other()
    oracle, last = done.begins(0)
    assert last == rank != oracle
    assert ["count", str(rank)] not in done.log[: done.log.index(["begin", str(rank), "0"])]
    assert (tmp_path / "out").read_text() == "one writes"


@pytest.mark.parametrize(
    ("how", "why", "variables"),
    [
        in_all("thread", "a thread of the script used a GPU first", {}),
        in_all(
            "slow", "the process for one device did not reach the first step within 1 s", {"STAND_IN_PATIENCE": "1"}
        ),
        ("killed", "signal 9 killed the process for one device", {}),
        in_all("fails", "in the process for one device the script fails with ValueError: this is one device", {}),
        in_all("ends", "in the process for one device the script ended before the first step", {}),
        ("rows", "a single device runs out of memory with the whole batch", {"STAND_IN_ROWS": "8"}),
    ],
)
def test_no_comparison_is_said(tmp_path: Path, how: str, why: str, variables: dict[str, str]) -> None:
    """Where there is nothing to compare with, the line says so and why, once; the training goes on."""
    done = train(tmp_path, how, **variables)
    assert done.code == 0, done.err
    assert done.err.count("first step: ") == 1
    assert NOT_COMPARED + why in done.err
    assert not [line for line in done.log if line[0] == "both"]


@pytest.mark.tier("all")
def test_ranks_by_exec_are_not_forked(tmp_path: Path) -> None:
    """With --launch exec nobody has looked whether a fork is safe, and the line says so."""
    done = train(tmp_path, "plain", ("--launch", "exec"))
    assert (done.code, len(done.begins(0))) == (0, 1), done.err
    assert NOT_COMPARED + "echelon cannot fork a rank that uses a GPU and was started by exec" in done.err


def test_second_optimizer_is_compared(tmp_path: Path) -> None:
    """A loss that is wrong for the second network alone is refused at the first step of its optimizer."""
    done = train(tmp_path, "wrong")
    assert done.code == 2
    assert "the first step differs from one device: the gradient of Linear.weight" in done.err
    assert "it is 2 times as large" in done.err


def test_optimizer_that_never_steps(tmp_path: Path) -> None:
    """The line claims nothing of an optimizer that has not stepped."""
    done = train(tmp_path, "never")
    assert done.code == 0, done.err
    assert (
        "for 1 of 2 optimizers; echelon did not compare the rest: the optimizer did not step in the first 10 steps"
        in done.err
    )


def test_ranks_that_share_a_device(tmp_path: Path) -> None:
    """NCCL refuses two ranks of one device: they exchange by gloo, which a line says, and train as one device does."""
    done = train(tmp_path, "plain", STAND_IN_SAME="one")
    assert done.code == 0, done.err
    assert done.err.count("note: several ranks share a device: they exchange data over the CPU with gloo") == 1
    assert "first step: equals that of one device" in done.err


@pytest.mark.parametrize("how", ["fsdp", in_all("tensor"), in_all("pipeline")])
def test_ways_to_split_a_model(tmp_path: Path, how: str) -> None:
    """A rank uses its own device alone, of all that it can see; a script without a loader is compared all the same."""
    (tmp_path / "layers.py").write_text(LAYERS)
    done = run(tmp_path, tmp_path / "layers.py", options=("--scale", how))
    assert done.code == 0, done.err
    assert "first step: equals that of one device" in done.err
    done.assert_one_after_the_other()


@pytest.mark.parametrize("name", pick(SOME[:1], all=ALL))
def test_scripts(tmp_path: Path, name: str) -> None:
    """Scripts in the styles that people use are compared on a device as on a CPU, and no device has two users."""
    done = run(tmp_path, SCRIPTS / f"{name}.py", "model.pt", STAND_IN_FIRST="1")
    assert done.code == 0, done.err[-3000:]
    assert done.err.count("first step: ") == 1
    if NOT_COMPARED in done.err:
        assert name in DRAWS, done.err
    done.assert_one_after_the_other()
