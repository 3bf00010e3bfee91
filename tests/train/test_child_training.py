"""A training in a process or thread of the script's own is shared, or refused with an exit code that says so."""

import os
import subprocess
import textwrap
from pathlib import Path

import pytest
from tests import warm
from tests.conftest import FOREIGN
from tests.tiers import in_all, some

from echelon.dialects import own_starts
from echelon.errors import UsageError
from echelon.spec import Command

TRAIN = """
import multiprocessing, sys, threading, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
def train(seed=0):
    torch.manual_seed(seed)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for x, y in DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=8):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("trained")
"""
PROCESS = """
if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[1]).Process(target=train)
    process.start()
    process.join()
    print("done")
"""
POOL = """
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(train, [1, 2])
    print("done")
"""
SPAWN = """
import torch.multiprocessing as mp
if __name__ == "__main__":
    mp.spawn(train, nprocs=1)
    print("done")
"""
IN_LOOP = """
if __name__ == "__main__":
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for x, y in DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=8):
        process = multiprocessing.get_context("spawn").Process(target=train)
        process.start()
        process.join()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    print("done")
"""
DISTRIBUTED = """
if __name__ == "__main__":
    getattr(getattr(torch, "distri" + "buted"), "init_process_" + "group")("gloo")
    process = multiprocessing.get_context("spawn").Process(target=train)
    process.start()
    process.join()
    print("done")
"""
BATCH_OF_ONE = """
def train():
    next(iter(DataLoader(torch.randn(4, 4), batch_size=1)))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
"""
THREAD = BATCH_OF_ONE + "thread = threading.Thread(target=train)\nthread.start()\nthread.join()\nprint('done')\n"
CAUGHT = BATCH_OF_ONE + "try:\n    train()\nexcept Exception:\n    pass\nprint('done')\n"
CAUGHT_ALL = BATCH_OF_ONE + "try:\n    train()\nexcept BaseException:\n    pass\nprint('done')\n"
HARMLESS = """
def square(x):
    return x * x
class Steep(torch.utils.data.Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, place):
        x = torch.ones(4, requires_grad=True)
        (x ** 2).sum().backward()
        return x.grad, torch.ones(1)
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(square, range(3)))
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for x, y in DataLoader(Steep(), batch_size=8, num_workers=1):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("trained on", x.mean().item())
"""
ELSEWHERE = "the script trains in a process that it starts itself; each of the 2 ranks would train on all samples"
TOO_SMALL = "the script's batch has 1 sample, but 2 ranks share it"


def run(folder: Path, script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    (folder / "train.py").write_text(TRAIN + textwrap.dedent(script))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    words = ["-m", "echelon", "run", "-n", "2", "--timeout", "120", "train.py", *arguments]
    return warm.run(words, cwd=folder, environ=clean, timeout=150)


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        (PROCESS, ("fork",)),
        in_all(POOL, ()),
        in_all(PROCESS, ("spawn",)),
        in_all(PROCESS, ("forkserver",)),
        in_all(SPAWN, ()),
        in_all(IN_LOOP, ()),
    ],
    ids=["forked", "spawned-pool", "spawned", "forkserver", "mp.spawn", "in-loop"],
)
def test_training_in_another_process(tmp_path: Path, script: str, arguments: tuple[str, ...]) -> None:
    """It is refused as soon as it begins, whoever waits for it, with the line and the way out."""
    done = run(tmp_path, script, *arguments)
    assert done.returncode == 2
    assert ELSEWHERE in done.stderr
    assert "way out: call the training in the script's own process" in done.stderr
    assert "loss.backward()" in done.stderr
    assert "done" not in done.stdout
    assert "trained" not in done.stdout


@pytest.mark.tier("all")
def test_child_of_a_script_that_distributes_itself(tmp_path: Path) -> None:
    """Where the script shares the work by itself, its child processes train as they like."""
    done = run(tmp_path, DISTRIBUTED)
    assert done.returncode == 0, done.stderr
    assert "not scaled: the script calls torch.distributed.init_process_group()" in done.stderr
    assert "trained" in done.stdout
    assert "done" in done.stdout


@pytest.mark.parametrize("script", some([THREAD, CAUGHT, CAUGHT_ALL], 3, first=1))
def test_refusal_that_nobody_sees(tmp_path: Path, script: str) -> None:
    """A refusal in a thread, or that the script catches, is told, and the run fails."""
    done = run(tmp_path, script)
    assert done.returncode == 2
    assert TOO_SMALL in done.stderr
    assert ("done" in done.stdout) == (script is CAUGHT_ALL)


def test_harmless_processes(tmp_path: Path) -> None:
    """Pools that prepare something, and workers of a DataLoader that compute gradients, are left alone."""
    done = run(tmp_path, HARMLESS)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0, 1, 4]\ntrained on 2.0\n"


@pytest.mark.parametrize(
    "words",
    [
        ("python", "train.py"),
        ("env", "A=1", "python3", "-u", "-W", "ignore", "train.py", "--lr", "1"),
        ("python3.11", "-m", "train"),
        ("./train.py",),
        ("bash", "job.sh"),
        ("./job.sh",),
    ],
    ids=" ".join,
)
def test_copies_of_one_training(tmp_path: Path, words: tuple[str, ...]) -> None:
    """A program that trains a script for one device is refused on two ranks, and is not on one, or with --scale off."""
    (tmp_path / "train.py").write_text("#!/usr/bin/env python\n" + TRAIN)
    (tmp_path / "job.sh").write_text("export A=1\nnumactl -l python \\\n  train.py  # all of it\n")
    command = Command(kind="program", target=words[0], arguments=words[1:])
    started = own_starts.python_scripts(command, str(tmp_path))
    with pytest.raises(UsageError) as caught:
        own_starts.refuse_repeated_training(started, 1, 2)
    assert "each of the 2 ranks would train all of " in caught.value.message
    assert "echelon run -n 2 " in caught.value.hint
    assert "train" in caught.value.hint
    own_starts.refuse_repeated_training(started, 1, 1)


@pytest.mark.parametrize("options", [("-n", "2"), ("-n", "2", "--scale", "off")], ids=["refused", "as-it-is"])
def test_copies_on_the_command_line(tmp_path: Path, options: tuple[str, ...]) -> None:
    """`echelon run -n 2 -- python train.py` is refused before the start, and is not where copies are meant."""
    (tmp_path / "train.py").write_text(TRAIN)
    done = warm.run(["-m", "echelon", "run", "--dry-run", *options, "--", "python", "train.py"], cwd=tmp_path)
    assert done.returncode == (0 if "off" in options else 2)
    assert ("would train all of train.py" in done.stderr) == ("off" not in options)
