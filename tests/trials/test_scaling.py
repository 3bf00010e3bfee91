"""`echelon bench scaling` as a user calls it: real runs, wrong lines, and a set of Slurm jobs."""

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.cluster import Cluster
from tests.runs import ECHELON

from echelon.cli import bench_scaling

TRAIN = """
import os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 10), torch.randn(64, 1)), batch_size=8)
model = nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if os.path.exists("written"):
    raise RuntimeError("a run sees the files of another")
open("written", "w").close()
if os.environ["WORLD" + "_SIZE"] in sys.argv[1:]:
    raise ValueError("a mistake")
for epoch in range(200):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
OWN = """
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(12):
    loss = model(torch.randn(8, 10)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""


def bench(folder: Path, *words: str, environ: "dict[str, str] | None" = None) -> subprocess.CompletedProcess[str]:
    return warm.run(["-m", "echelon", "bench", "scaling", *words], cwd=folder, environ=environ or dict(os.environ))


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_script_for_one_device_is_measured_in_copies(tmp_path: Path) -> None:
    """Each run has its own copy of the folder, ends after its steps, and leaves nothing in the folder of the user."""
    (tmp_path / "train.py").write_text(TRAIN)
    done = bench(tmp_path, "--ranks", "2,1", "--steps", "30", "--plot", "x", "--json", "train.py")
    assert done.returncode == 0, done.stderr
    found = told(done)
    assert [(size["ranks"], size["steps"], size["failure"]) for size in found["sizes"]] == [(1, 18, ""), (2, 18, "")]
    assert (found["mode"], found["warm_up"]) == ("strong", 12)
    assert all(size["steps_per_second"]["value"] > 0 for size in found["sizes"])
    assert found["sizes"][0]["efficiency"]["value"] == 1.0
    assert {"start", "before the first step", "steps", "end"} <= set(found["sizes"][1]["phases"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py", "x.png", "x.svg"]


@pytest.mark.tier("all")
def test_size_that_fails_has_its_reason_and_the_folder_is_read_again(tmp_path: Path) -> None:
    """The other sizes are measured, the exit code is 1, and --read says the same from the folder that was kept."""
    (tmp_path / "train.py").write_text(TRAIN)
    line = ["--ranks", "1,2", "--steps", "10", "--repeat", "2", "--weak", "--out", "kept", "train.py", "2"]
    done = bench(tmp_path, *line)
    assert done.returncode == 1
    assert "error in the script: ValueError: a mistake" in done.stdout
    assert "weak scaling (same batch for each rank), 10 steps each, 2 runs each" in done.stdout
    again = bench(tmp_path, "--read", "kept")
    assert (again.returncode, again.stdout) == (1, done.stdout)
    found = told(bench(tmp_path, "--read", "kept", "--json"))
    assert [(size["ranks"], size["runs"]) for size in found["sizes"]] == [(1, 2), (2, 1)]


@pytest.mark.tier("all")
def test_script_that_distributes_itself_has_weak_scaling(tmp_path: Path) -> None:
    """Its ranks have the batches that it takes by itself; it ends by itself, or after the steps that are asked for."""
    (tmp_path / "train.py").write_text(OWN)
    done = bench(tmp_path, "--ranks", "1,2", "--steps", "0", "--json", "train.py")
    assert done.returncode == 0, done.stderr
    assert "distributes itself, so each rank has the batch that it takes: weak scaling" in done.stderr
    found = told(done)
    assert (found["mode"], [size["steps"] for size in found["sizes"]]) == ("weak", [8, 8])
    found = told(bench(tmp_path, "--ranks", "1,2", "--steps", "10", "--weak", "--json", "train.py"))
    assert [size["steps"] for size in found["sizes"]] == [6, 6]
    done = bench(tmp_path, "--ranks", "1,2", "--strong", "train.py")
    assert done.returncode == 2
    assert "--strong --global-batch 256 train.py --batch-size {batch_per_rank}" in done.stderr


PAIRS = """
import torch
from torch import nn

class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 8), nn.Linear(4, 8)

    def forward(self, x, y):  # compares each sample with all others of the batch
        return nn.functional.cross_entropy(self.one(x) @ self.other(y).T, torch.arange(len(x)))

torch.manual_seed(0)
model = Pairs()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.utils.data.DataLoader(torch.randn(640, 4), batch_size=16):
    optimizer.zero_grad()
    model(x, x + 0.1).backward()
    optimizer.step()
"""


def test_size_that_trains_something_else_is_no_result(tmp_path: Path) -> None:
    """A loss that pairs the samples of a batch is another on two ranks: the row says so, and one rank is measured."""
    (tmp_path / "train.py").write_text(PAIRS)
    done = bench(tmp_path, "--ranks", "1,2", "--json", "train.py")
    assert done.returncode == 1
    one, two = told(done)["sizes"]
    assert one["failure"] == "" and one["steps"] == 24
    assert "Pairs mixes the samples of its batch in mm(), at train.py:" in two["failure"]
    assert two["efficiency"] is None


@pytest.mark.tier("all")
def test_ranks_that_train_alone_are_no_result(tmp_path: Path) -> None:
    """A script for one device that is not scaled trains copies: that is said in place of a perfect efficiency."""
    (tmp_path / "train.py").write_text(TRAIN.replace("raise RuntimeError", "print"))
    found = told(bench(tmp_path, "--ranks", "1,2", "--steps", "20", "--scale", "off", "--json", "train.py"))
    assert [size["failure"] for size in found["sizes"]] == [
        "", "each rank trained alone: the script never initialized torch.distributed"
    ]  # fmt: skip


def test_page_names_each_option() -> None:
    """The options of the benchmark itself are explained in docs/bench.md."""
    page = (Path(__file__).parents[2] / "docs" / "bench.md").read_text("utf-8")
    names = [name for option in bench_scaling.OWN for name in option.names]
    assert [name for name in names if not re.search(rf"^\|.*`{re.escape(name)}[ `].*\|", page, re.MULTILINE)] == []


@pytest.mark.tier("all")
def test_script_without_steps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nprint(torch.ones(2).sum())\n")
    done = bench(tmp_path, "--ranks", "1,2", "train.py")
    assert done.returncode == 1
    assert done.stdout.count("no optimizer of PyTorch made a step") == 2


WRONG = {
    ("--ranks", "1,2"): "needs a script",
    ("--ranks", "1", "train.py"): "--ranks 1: scaling compares at least 2 sizes",
    ("--ranks", "1,2", "--strong", "--weak", "train.py"): "two benchmarks",
    ("--ranks", "1,2", "--steps", "9", "train.py"): "a rate needs at least 10 steps",
    ("--ranks", "1,2", "--steps", "20", "--warm-up", "11", "train.py"): "at most half may warm up",
    ("--ranks", "1,2", "--repeat", "0", "train.py"): "--repeat 0",
    ("--ranks", "1,2", "gone.py"): "gone.py",
    ("--ranks", "1,2", "--", "true"): "needs a script",
    ("--ranks", "1,2", "--time", "30m", "train.py"): "without --submit",
    ("--ranks", "1,2", "--submit", "train.py"): "--submit needs --time",
    ("--submit", "--time", "30m", "train.py"): "--submit needs --ranks",
    ("--ranks", "1,2", "--submit", "--time", "30m", "--plot", "x", "train.py"): "nothing to draw",
    ("--read", "gone"): "holds no benchmark",
    ("--read", "gone", "--ranks", "1,2"): "does not go with --ranks",
    ("--read", "gone", "train.py"): "takes no script",
    ("--out", "full", "--ranks", "1,2", "train.py"): "--out full is not empty",
    ("--ranks", "1,3", "--exact", "4", "train.py"): "--exact 4",
    ("--timeout", "x", "--ranks", "1,2", "train.py"): "--timeout x",
    ("--scale", "fsdp", "--ranks", "1,2", "own.py"): "--scale fsdp is for a script for one device",
    ("--scale", "off", "--ranks", "1,2", "--per-device-batch", "train.py"): "no option --per-device-batch",
}


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_wrong_line_is_one_error(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Exit code 2, the reason, and a repair; nothing was started."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    done = bench(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert WRONG[words] in done.stderr
    assert "  hint: " in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "own.py", "train.py"]


@pytest.mark.tier("all")
@pytest.mark.slurm
def test_set_of_jobs(slurm: Cluster, tmp_path: Path) -> None:
    """Jobs run one after the other, also after one that fails; one command reads all of them."""
    environ = {**slurm.environ, "XDG_CONFIG_HOME": str(tmp_path / "home")}
    subprocess.run([*ECHELON, "machines", "learn"], env=environ, check=True, capture_output=True)
    (tmp_path / "it's here").mkdir()
    folder = tmp_path / "it's here"
    (folder / "train.py").write_text(TRAIN)
    line = ["--ranks", "1,2,4", "--steps", "10", "--submit", "--time", "5", "--out", "kept", "--json"]
    done = bench(folder, *line, "train.py", "2", environ=environ)
    assert done.returncode == 0, done.stderr
    jobs = told(done)["jobs"]
    assert len(jobs) == 3
    early = told(bench(folder, "--read", "kept", "--json", environ=environ))
    assert early["sizes"][2]["failure"] in ("has not ended yet", "")
    deadline = time.monotonic() + 150
    while "has not ended yet" in (shown := bench(folder, "--read", "kept", "--json", environ=environ)).stdout:
        assert time.monotonic() < deadline, shown.stdout
        time.sleep(1)
    sizes = told(shown)["sizes"]
    assert shown.returncode == 1
    assert [size["failure"] for size in sizes] == ["", "error in the script: ValueError: a mistake", ""]
    assert sizes[2]["speedup"]["value"] > 0
    scripts = sorted((folder / "kept").glob("*/copy/echelon-runs/*/job.sh"))
    dependencies = [line for script in scripts for line in script.read_text().splitlines() if "--dependency" in line]
    assert dependencies == [f"#SBATCH --dependency=afterany:{job}" for job in jobs[:2]]
