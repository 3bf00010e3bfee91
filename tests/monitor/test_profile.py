"""`echelon profile` of runs: chosen ranks and steps of unchanged scripts, other profilers, and what is refused."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import warm

from echelon.errors import UsageError
from echelon.launch import profilers
from echelon.launch.prepare import prepare
from echelon.node import profiler
from echelon.orders.profile import ProfileOrder
from echelon.spec import Command, Job

ONE_DEVICE = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 8)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
"""
OF_ITS_OWN = """
import sys
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).pow(2).mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def profile(
    folder: Path, *words: str, script: str = ONE_DEVICE, path: str = ""
) -> "tuple[subprocess.CompletedProcess[str], Path]":
    """Profile a run as a user does; return what the command said, and the folder of the profiles."""
    (folder / "train.py").write_text(script)
    environ = {**os.environ, "PATH": path + os.environ["PATH"]}
    line = ["-m", "echelon", "profile", "--run-dir", "run", "--check", "off", *words]
    done = warm.run(line, cwd=folder, environ=environ)
    return done, folder / "run" / "profile"


def steps_of(path: Path) -> "list[str]":
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    found = [event for event in events if event.get("name", "").startswith("ProfilerStep#")]
    return sorted(event["name"] for event in found if event["args"].get("finished", True))


def test_one_rank_of_an_unchanged_script(tmp_path: Path) -> None:
    """Only the chosen rank of a scaled script records, and only the chosen steps; the verdict is printed."""
    done, folder = profile(tmp_path, "--ranks", "1", "--steps", "4..6", "-n", "2", "train.py", "9")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in folder.iterdir()] == ["rank-1.json.gz"]
    assert (folder / "rank-1.json.gz").stat().st_mode & 0o777 == 0o600
    assert steps_of(folder / "rank-1.json.gz") == ["ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6"]
    assert "scaled over 2 ranks" in done.stderr
    assert "loss" in done.stdout
    assert "trace     rank-1.json.gz · rank 1 of 2 · CPU · 3 steps of " in done.stdout
    assert "bound by  " in done.stdout


@pytest.mark.tier("all")
def test_script_of_its_own_that_ends_early(tmp_path: Path) -> None:
    """Ranks that are not scaled, and not forked, record too; of a script that ends early, the steps that it made."""
    words = ("--ranks", "all", "--steps", "3..50", "--launch", "exec", "-n", "2", "--json", "train.py", "5")
    done, folder = profile(tmp_path, *words, script=OF_ITS_OWN)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(one["rank"], one["steps"], one["counted_by"]) for one in told["traces"]] == [
        (0, 3, "ProfilerStep"),
        (1, 3, "ProfilerStep"),
    ]
    assert steps_of(folder / "rank-0.json.gz") == ["ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"]


def test_steps_that_never_come(tmp_path: Path) -> None:
    """A script that ends before the first of the steps is told so, with steps that it makes."""
    done, folder = profile(tmp_path, "-n", "1", "train.py", "7")
    assert done.returncode == 1
    assert not folder.exists()
    assert "rank 0 has no profile: it made 7 steps of an optimizer, and the profile begins with step 10" in done.stderr
    assert "hint: --steps 2..7" in done.stderr


TOOL = """#!{python}
import os, subprocess, sys

words = sys.argv[1:]
at = words.index("-o") + 1
assert "node.pyz" not in os.environ.get("PYTHONPATH", "")
assert "ECHELON_SCALE" not in os.environ
open(words[at] + ".nsys-rep", "w").write(" ".join(words[:at]))
sys.exit(subprocess.call(words[at + 1:], close_fds=False))
"""


@pytest.mark.tier("all")
def test_tool_that_starts_the_chosen_rank(tmp_path: Path) -> None:
    """A profiler starts its rank alone, with a name of the rank; the script is scaled as without it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nsys").write_text(TOOL.format(python=sys.executable))
    (tmp_path / "bin" / "nsys").chmod(0o755)
    words = ("--tool", "nsys", "--ranks", "1", "-n", "2", "--scale", "data", "train.py", "5")
    done, folder = profile(tmp_path, *words, path=f"{tmp_path / 'bin'}:")
    assert done.returncode == 0, done.stderr
    assert "scaled over 2 ranks" in done.stderr
    assert "rank 1: run/profile/rank-1.nsys-rep" in done.stdout
    assert [path.name for path in folder.iterdir()] == ["rank-1.nsys-rep"]
    assert (folder / "rank-1.nsys-rep").read_text().startswith("profile -t cuda,nvtx,osrt")


REFUSED = [
    (["--ranks", "0,17", "-n", "2", "train.py"], "--ranks names rank 17, but this run has 2 ranks, 0 to 1"),
    (["--ranks", "x", "train.py"], "--ranks x: give ranks, or all"),
    (["--ranks", "", "train.py"], "--ranks '': give ranks, or all"),
    (["--ranks", "9-3", "train.py"], "--ranks 9-3: give ranks, or all"),
    (["--steps", "1..3", "train.py"], "--steps 1..3: a profile begins with the end of a step"),
    (["--steps", "9..3", "train.py"], "--steps 9..3: give the first and the last step"),
    (["--steps", "²", "train.py"], "--steps ²: give the first and the last step"),
    (["--tool", "perf", "train.py"], "--tool perf: the choices are torch, rocprof, nsys, py-spy"),
    (["--tool", "nsys", "--steps", "2..3", "train.py"], "--steps is for --tool torch: nsys records the whole run"),
    (["--tool", "nsys", "--launch", "warm", "train.py"], "--launch warm: nsys must start its ranks"),
    (["--tool", "rocprof", "train.py"], "--tool rocprof: rocprofv3 or rocprof is not installed here"),
    (["--try", "--tool", "py-spy", "train.py"], "--try is for --tool torch: py-spy gives no verdict"),
    (["--try", "--", "torchrun", "train.py"], "--try is for a script, and torchrun starts one"),
    (["--try", "--rdzv-endpoint", "n:1", "--nnodes", "2", "--node-rank", "0", "train.py"], "--try starts several runs"),
    (["--", "true"], "--tool torch profiles Python scripts, and true is a program"),
    (["trace.json.gz"], "trace.json.gz is no script; a trace is read with --read"),
    ([], "the command line has no script"),
]


@pytest.mark.parametrize(("words", "why"), REFUSED)
def test_what_cannot_be_profiled_is_refused(tmp_path: Path, words: "list[str]", why: str) -> None:
    """One error says why, with a repair, before anything starts."""
    (tmp_path / "train.py").write_text("print('started')\n")
    environ = {**os.environ, "PATH": "/usr/bin:/bin"}
    done = warm.run(["-m", "echelon", "profile", *words], cwd=tmp_path, environ=environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"echelon: error: {why}"), done.stderr
    assert "hint: " in done.stderr
    assert not (tmp_path / "echelon-runs").exists()


def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> Any:
    (tmp_path / "train.py").write_text("import json\n")
    monkeypatch.chdir(tmp_path)
    return prepare(Job(command=Command(kind="script", target="train.py"), ranks_per_node=4, **fields))


@pytest.mark.parametrize(
    ("tool", "installed", "program"),
    [
        ("rocprof", {"rocprofv3", "rocprof"}, "rocprofv3"), ("rocprof", {"rocprof"}, "rocprof"),
        ("nsys", {"nsys"}, "nsys"), ("py-spy", {"py-spy"}, "py-spy"),
    ],
)  # fmt: skip
def test_tool_gets_a_name_of_each_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, installed: "set[str]", program: str
) -> None:
    """The best installed program is taken, and its files are named after the rank."""
    order = ProfileOrder(((0, -1),), 10, 15)
    plan = profilers.ordered(
        planned(tmp_path, monkeypatch), order, tool, find=lambda name: name if name in installed else None
    )
    asked = json.loads(dict(plan.environ)[profiler.VARIABLE])
    assert asked["ranks"] == [[0, 3]]
    assert asked["command"][0] == program
    assert any("rank-{rank}" in word for word in asked["command"])
    assert any("{folder}" in word for word in asked["command"])


def test_tool_that_is_missing_names_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = ProfileOrder(((1, 2),), 10, 15)
    for tool in profilers.TOOLS:
        with pytest.raises(UsageError, match="is not installed here") as caught:
            profilers.ordered(planned(tmp_path, monkeypatch), order, tool, find=lambda _: None)
        assert caught.value.hint


def test_dry_run_starts_nothing(tmp_path: Path) -> None:
    """The plan is that of `echelon run`."""
    done, folder = profile(tmp_path, "--dry-run", "-n", "2", "train.py", "5")
    assert done.returncode == 0, done.stderr
    assert "train.py 5" in done.stdout
    assert not folder.exists()


def test_files_of_a_rank_are_its_own(tmp_path: Path) -> None:
    """Rank 1 is not rank 11, and a file that is being written does not count."""
    folder = tmp_path / "profile"
    folder.mkdir()
    for name in ("rank-1.json.gz", "rank-11.json.gz", "rank-1_kernel_stats.csv", "rank-1.part.json.gz"):
        (folder / name).touch()
    names = [os.path.basename(path) for path in profilers.files(str(tmp_path), 1)]
    assert names == ["rank-1.json.gz", "rank-1_kernel_stats.csv"]
