"""`echelon fit`: the answer about a script, a function and a machine; a wrong input has one error and no traceback."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.runs import ECHELON
from tests.tiers import some

from echelon.launch import fit as launched

SCRIPT = """
import sys, torch
from torch import nn

width = int(sys.argv[1])
model = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4)]).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(256, width))
for (x,) in torch.utils.data.DataLoader(data, batch_size=64, shuffle=True):
    loss = model(x.to("cuda")).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
    torch.save(model.state_dict(), "model.pt")
"""
WIDTH = 4096
WEIGHTS = 4 * (WIDTH * WIDTH + WIDTH)
SMALL = """
import torch


def build():
    return torch.nn.Linear(8, 8), torch.zeros(4, 8)


def wrong():
    return 3
"""


def fit(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "XDG_CONFIG_HOME": str(folder / "config")}
    return warm.run(["-m", "echelon", "fit", *words], cwd=folder, environ=environ)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "small.py").write_text(SMALL)
    (folder / "silent.py").write_text("print('nothing')\n")
    (folder / "group.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    (folder / "ranks.py").write_text("import os, torch\nprint(os.environ['RANK'])\n")
    (folder / "reads.py").write_text("import torch\ntorch.load('gone.pt')\n")
    (folder / "fails.py").write_text("import torch\nmodel = torch.nn.Linear(2, 3)\nmodel(torch.zeros(4, 5))\n")
    return folder


@pytest.fixture(scope="module")
def answer(folder: Path) -> Any:
    """What the script takes of a device with 800 MiB, as JSON."""
    done = fit(folder, "--device", "mine", "--device-memory", "800M", "--gpus", "2", "--json", "train.py", str(WIDTH))
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("echelon: tracing train.py up to its second step; nothing is computed or written\n")
    return json.loads(done.stdout)


def test_parts_of_a_step(answer: Any) -> None:
    """Parameters, gradients and two states for each weight; the foreach kernels of AdamW have a copy of the weights."""
    assert (answer["parameters"], answer["dtypes"], answer["optimizers"]) == (WEIGHTS, ["float32"], ["AdamW"])
    assert (answer["rows"], answer["steps"], answer["notes"]) == (64, 2, [])
    [device] = answer["devices"]
    first = device["strategies"][0]
    assert (first["strategy"], first["phase"]) == ("one device", "optimizer")
    parts = first["parts"]
    assert parts["parameter"] == parts["gradient"] == 4 * WEIGHTS
    assert 8 * WEIGHTS <= parts["state"] <= 8 * WEIGHTS + 1024
    assert answer["flops"]["forward"] == 4 * 2 * 64 * WIDTH * WIDTH


def test_strategies_and_the_choice(answer: Any) -> None:
    """Two devices share what one cannot hold; the simplest strategy that fits is chosen, and can be asked for."""
    [device] = answer["devices"]
    strategies = {row["strategy"]: row for row in device["strategies"]}
    assert {"one device", "data", "ZeRO-1", "ZeRO-2", "FSDP", "pipeline", "one device + bf16"} <= set(strategies)
    assert strategies["FSDP"]["peak_bytes"] > strategies["FSDP + bf16 policy"]["peak_bytes"]
    assert strategies["data"]["low_bytes"] > strategies["FSDP"]["low_bytes"]
    assert strategies["ZeRO-2"]["peak_bytes"] > strategies["FSDP"]["peak_bytes"]  # whole blocks come and go one by one
    assert (strategies["data"]["scale"], strategies["FSDP"]["scale"], strategies["ZeRO-1"]["scale"]) == (
        "data",
        "fsdp",
        "",
    )
    assert all(row["low_bytes"] <= row["high_bytes"] for row in strategies.values())
    assert strategies["one device"]["answer"] != "fits"
    assert device["advice"] and device["advice"][0]["saved_bytes"] > 0


def test_script_of_one_step(folder: Path) -> None:
    """The second step is counted like the first, and meets the optimizer's states; a later failure is told."""
    text = SCRIPT.replace("    print(loss.item())", "    open('absent.txt')")
    (folder / "once.py").write_text(text)
    done = fit(folder, "--device", "mine", "--device-memory", "80G", "--gpus", "2", "--json", "once.py", str(WIDTH))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    first, *others = answer["devices"][0]["strategies"]
    assert first["parts"]["state"] >= 2 * WEIGHTS * 4
    assert first["peak_bytes"] == pytest.approx(5 * WEIGHTS * 4, rel=0.02)
    assert len(others) > 5
    line = text[: text.index("open(")].count("\n") + 1
    assert answer["notes"] == [f"after the traced step the script fails: FileNotFoundError at once.py:{line}: "
                               "[Errno 2] No such file or directory: 'absent.txt'"]  # fmt: skip


def test_progress_of_a_long_trace(folder: Path) -> None:
    """How far the trace is stands in a file, which is told while the program works."""
    (folder / "progress").write_text("step 1, micro-batch 3; 40 tensors so far")
    said: list[str] = []
    with launched.telling(str(folder / "progress"), said.append, first_seconds=0.05):
        time.sleep(0.4)
    assert said
    assert said[0].startswith("still tracing after")
    assert said[0].endswith("s: step 1, micro-batch 3; 40 tensors so far")


def test_nothing_is_written(answer: Any, folder: Path) -> None:
    """The script saves its model and prints; a trace leaves neither."""
    assert answer["steps"] == 2
    assert not (folder / "model.pt").exists()


def test_killed_command_leaves_no_trace_running(folder: Path) -> None:
    """The process that traces a script ends with the command, also where nobody could tell it."""
    began = "import subprocess, time\nsubprocess.run(['sh', '-c', 'echo $PPID > began'])\ntime.sleep(600)\n"
    (folder / "sleeps.py").write_text(began)
    words = [*ECHELON, "fit", "--device", "v100", "sleeps.py"]
    with subprocess.Popen(words, cwd=folder, stderr=subprocess.DEVNULL) as command:
        wait_for(lambda: (folder / "began").exists() and (folder / "began").read_text().strip())
        command.kill()
    pid = (folder / "began").read_text().strip()
    wait_for(lambda: not is_running(pid))


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition: "Callable[[], Any]", seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_words_of_a_machine(folder: Path) -> None:
    """On a machine with known devices: a row for each strategy, what fills the memory, a command."""
    done = fit(folder, "--machine", "lumi", "small:build")
    assert done.returncode == 0, done.stderr
    assert "on MI250X (one of its 2 devices) of LUMI-G, 64 GiB:" in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("small:build: 72 parameters (float32), AdamW, a batch of 4 rows; traced in ")
    assert any(line.startswith("one device ") and " fits " in line for line in lines)
    assert "the fewest devices with FSDP: 1 device" in lines


def test_all_known_devices(folder: Path) -> None:
    """Where this machine has no device that echelon knows, each known device has a line."""
    done = fit(folder, "--assume", "small.py:3=0.5", "small:build")
    assert done.returncode == 0, done.stderr
    assert {"A100", "V100", "MI250X"} <= {line.split()[0] for line in done.stdout.splitlines() if " fits" in line}


WRONG = [
    ((), "echelon fit needs a script, a function or --config", "echelon fit train.py"),
    (("gone.py",), "gone.py is not a file", "echelon fit train.py"),
    (("--device", "z9", "train.py"), "--device z9: echelon knows a100-40", "--device z9 --device-memory 80G"),
    (("--device", "a100", "train.py"), "--device a100: there are a100-40, a100-64, a100-80", "--device a100-40"),
    (("--config", "gone.json"), "--config gone.json: there is no such file", "--config config.json"),
    (("--config", "x", "train.py"), "--config x is a model, and train.py another", "echelon fit --config x"),
    (("--length", "8", "train.py"), "--length describes the batch of a --config", "--config config.json"),
    (("--optimizer", "lion", "train.py"), "--optimizer lion: the choices are adamw", "--optimizer adamw"),
    (("--assume", "3", "train.py"), "--assume 3: give a line and a number", "--assume train.py:31=0.5"),
    (("--gpus", "0", "train.py"), "--gpus 0", "--gpus"),
    (("--from", "run"), "--from names, with --scaling", "echelon fit --scaling --from RUN RUN"),
    (("--machine", "lumi", "--node-type", "x", "train.py"), "--node-type x: ", "--node-type "),
]
WRONG_WHEN_TRACED = [
    (("silent.py",), "silent.py ends without a step of an optimizer", "module:function"),
    (("reads.py",), "reads.py cannot be traced: FileNotFoundError at reads.py:2: ", "module:function"),
    (("fails.py",), "fails.py cannot be traced: RuntimeError at fails.py:3: ", "python fails.py"),
    (("ranks.py",), "ranks.py distributes itself (it reads RANK), and ", "module:function"),
    (("group.py",), "init_process_group() is called at group.py:2, and echelon fit traces", "module:function"),
    (("small:gone",), "small:gone cannot be traced: AttributeError: ", ""),
    (("small:wrong",), "small:wrong returns int, but a model and a batch are needed", ""),
    (("--gpus", "8", "small:build"), "--gpus 8: the batch has 4 rows", "--rows 8"),
]


@pytest.mark.parametrize(("words", "error", "hint"), [*WRONG, *some(WRONG_WHEN_TRACED, 4, first=1)])
def test_wrong_input(folder: Path, words: "tuple[str, ...]", error: str, hint: str) -> None:
    """One error, with a repair to paste; exit code 2; no frames of echelon or PyTorch."""
    done = fit(folder, *words)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert error in done.stderr
    assert hint in done.stderr
    assert "site-packages" not in done.stderr and "src/echelon" not in done.stderr
