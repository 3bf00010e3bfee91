"""`echelon plan --fit train.py`: the strategy that fits a traced script on the planned devices, as a command."""

import json
import shlex
from pathlib import Path

import pytest
from tests.plan.test_command import ACCOUNT, echelon

SCRIPT = """
import sys
import torch

width, blocks = int(sys.argv[1]), int(sys.argv[2])
model = torch.nn.Sequential()
for _ in range(blocks):
    model.append(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(256, width))
for (rows,) in torch.utils.data.DataLoader(data, batch_size=64):
    optimizer.zero_grad()
    model(rows).square().mean().backward()
    optimizer.step()
"""
PLAN = f"plan --machine lumi {ACCOUNT} -t 1h"
GIB = 1 << 30


def fit(folder: Path, words: str) -> dict[str, object]:
    (folder / "train.py").write_text(SCRIPT)
    done = echelon(folder, f"{PLAN} {words}")
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)["memory"]
    return result


def test_simplest_strategy_is_a_command_that_submit_accepts(tmp_path: Path) -> None:
    """A small model is shared by data; what is pasted is accepted by echelon submit."""
    result = fit(tmp_path, "--gpus 8 --json --fit train.py 256 2")
    assert (result["chosen"]["scale"], result["simpler"]) == ("data", None)
    assert result["why"].endswith("; a trace does not show whether the model mixes samples, which run refuses")
    (line,) = result["take"]
    again = echelon(tmp_path, line.partition("echelon ")[2].replace("submit ", "submit --dry-run ", 1))
    assert again.returncode == 0, again.stderr
    assert "--scale data train.py 256 2" in again.stdout


def test_larger_models_get_the_next_strategy(tmp_path: Path) -> None:
    """Of a device of 7 GiB, data parallelism of 137 million weights takes too much; the answer says how much."""
    result = fit(tmp_path, "--gpus 8 --device-memory 7G --json --fit train.py 4096 8")
    assert result["parameters"] == 8 * (4096 * 4096 + 4096)
    assert result["chosen"]["strategy"] != "data"
    assert result["refused"][0]["strategy"] == "data"
    assert result["simpler"]["high_bytes"] > 0.95 * 7 * GIB >= result["chosen"]["high_bytes"]
    assert any("run.parallelize" in line for line in result["take"]) is (result["chosen"]["scale"] == "")
    assert "would take" in result["why"]


@pytest.mark.tier("all")
def test_too_large_for_all(tmp_path: Path) -> None:
    """On one device nothing fits; the command for more devices says that it fits there."""
    result = fit(tmp_path, "--gpus 1 --device-memory 20G --json --fit train.py 8192 16")
    assert result["chosen"] is None
    (line,) = result["take"]
    words = shlex.split(line.partition(": echelon ")[2])
    more = echelon(tmp_path, shlex.join([words[0], "--json", *words[1:]]))
    assert more.returncode == 0, more.stderr
    assert json.loads(more.stdout)["memory"]["chosen"] is not None


def test_script_that_distributes_itself_is_told_so(tmp_path: Path) -> None:
    """echelon submit would refuse to scale it, so no such command is shown."""
    (tmp_path / "own.py").write_text(
        "import torch.distributed\n" + SCRIPT + "\nif torch.distributed.is_initialized():\n"
        "    torch.nn.parallel.DistributedDataParallel(model)\n    torch.distributed.init_process_group()\n"
    )
    done = echelon(tmp_path, f"{PLAN} --gpus 8 --fit own.py 64 2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("data: echelon submit would refuse it: own.py distributes itself")


def test_batch_that_ranks_cannot_share_is_told(tmp_path: Path) -> None:
    """What `echelon run` would refuse is no command, and nothing is said of mixed samples, as in `echelon fit`."""
    (tmp_path / "whole.py").write_text(
        "import torch\nmodel = torch.nn.Linear(8, 8)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(2):\n    model.weight.square().sum().backward()\n    optimizer.step()\n"
    )
    done = echelon(tmp_path, f"{PLAN} --gpus 8 --fit whole.py")
    assert done.returncode == 0, done.stderr
    why, command = done.stdout.splitlines()[-2:]
    assert "mixes samples" not in why
    assert command.startswith("data: echelon run --scale data would refuse it: the script called backward(), but ")


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("--gpus 8 --fit", "--fit needs a script", "--fit train.py"),
        ("--gpus 8 --fit missing.py", "missing.py: there is no such file", "--fit train.py"),
        ("--gpus 8 --parameters 7B --fit train.py", "--parameters is for the formula", "remove --parameters"),
        ("--gpus 8 --dtype bf16 --fit train.py", "--dtype is for the formula", "remove --dtype"),
        ("--gpus 8 train.py --fit", "--fit stands before the script", "echelon plan --fit train.py"),
        ("--gpus 8 --assume train.py:3=1", "--assume needs --fit", "--fit train.py"),
        ("--gpus 128 --fit train.py 64 2", "a batch of 64 rows cannot be cut into 128 ranks", "rows=128"),
    ],
)
def test_wrong_input(tmp_path: Path, words: str, message: str, hint: str) -> None:
    """One error, and no trace where the words alone show it."""
    (tmp_path / "train.py").write_text(SCRIPT)
    done = echelon(tmp_path, f"{PLAN} {words}")
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


def test_formula_names_the_trace(tmp_path: Path) -> None:
    """--parameters counts no activations, and says which command does."""
    done = echelon(tmp_path, f"{PLAN} --gpus 8 --parameters 7B")
    assert "activations count too, and echelon fit train.py, or echelon plan --fit train.py, knows them" in done.stderr
