"""`echelon run --check`: the worst that is wrong with a node is said in one line, or stops the run before it begins."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster import Cluster


def run(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "echelon", "run", *words, "--", "touch", "begun"],
        cwd=folder, env={**os.environ, **more}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("level", ["fast", "full"])
def test_error_stops_the_run(tmp_path: Path, level: str) -> None:
    """What the run would fail with is told with its remedy, before anything starts."""
    done = run(tmp_path, "--check", level, "-n", "1", NCCL_SOCKET_IFNAME="hsn0")
    assert done.returncode == 2
    assert "NCCL_SOCKET_IFNAME=hsn0 matches no interface of the node; export NCCL_SOCKET_IFNAME=" in done.stderr
    assert "echelon run --check off" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_warning_is_one_line(tmp_path: Path) -> None:
    """What may be meant is said, and the run goes on."""
    done = run(tmp_path, "--check", "fast", "-n", "1", MIOPEN_USER_DB_PAHT="/nowhere")
    assert done.returncode == 0
    assert "nothing reads MIOPEN_USER_DB_PAHT; programs read MIOPEN_USER_DB_PATH" in done.stderr.splitlines()[0]
    assert (tmp_path / "begun").exists()


@pytest.mark.parametrize("words", [(), ("--check", "off")])
def test_not_asked(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Without devices nobody looks unless that is asked for."""
    done = run(tmp_path, *words, "-n", "1", NCCL_SOCKET_IFNAME="hsn0")
    assert done.returncode == 0
    assert "hsn0" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--check", "full", "--exclude-bad"),
            "--exclude-bad leaves out nodes of an allocation, but this is a single machine",
        ),
        (("--exclude-bad",), "--exclude-bad leaves out nodes of an allocation"),
    ],
)
def test_nothing_to_do_without(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    """One machine has no node that it could do without."""
    done = run(tmp_path, *words, "-n", "1")
    assert done.returncode == 2
    assert said in done.stderr and "hint: salloc --nodes=8" in done.stderr


def test_no_such_level(tmp_path: Path) -> None:
    """The choices are listed."""
    done = run(tmp_path, "--check", "quick", "-n", "1")
    assert done.returncode == 2
    assert "--check quick: the choices are fast, full, off" in done.stderr


@pytest.mark.slurm
def test_nodes_of_an_allocation(slurm: Cluster, tmp_path: Path) -> None:
    """In an allocation all nodes are looked at before the ranks start."""
    command = [sys.executable, "-m", "echelon", "run", "--check", "fast", "-n", "1", "--", "touch", "begun"]
    done = subprocess.run(
        ["salloc", "-N", "2", *command],
        cwd=tmp_path, env={**slurm.environ, "NCCL_SOCKET_IFNAME": "hsn0"}, capture_output=True, text=True, timeout=90,
        check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "NCCL_SOCKET_IFNAME=hsn0 matches no interface of the node" in done.stderr.replace("node's", "nodes'")
    assert not (tmp_path / "begun").exists()


@pytest.mark.slurm
def test_run_goes_on_without_a_bad_node(slurm: Cluster, tmp_path: Path) -> None:
    """With --exclude-bad the ranks are those of the other nodes, and the worst of the one left out is said."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core cannot be made fewer")
    command = [sys.executable, "-m", "echelon", "run", "--exclude-bad", "-n", "2", "--show", "all"]
    script = ["--", "sh", "-c", 'echo "rank $RANK of $WORLD_SIZE on $SLURMD_NODENAME"']
    daemon = slurm.slurmd_pid("nid005002")
    before = os.sched_getaffinity(daemon)
    os.sched_setaffinity(daemon, {min(before)})
    try:
        done = slurm.run("salloc", "-N4", "--ntasks-per-node=1", *command, "--check", "fast", *script, cwd=tmp_path)
    finally:
        os.sched_setaffinity(daemon, before)
    lines = sorted(done.stdout.splitlines())
    assert [line.rpartition("rank ")[2] for line in lines] == [
        f"{rank} of 6 on {node}" for rank, node in enumerate(sorted(["nid005000", "nid005001", "nid005003"] * 2))
    ], done.stdout + done.stderr
    assert "echelon: check: continues without nid005002: 2 ranks on 1 core" in done.stderr
    done = slurm.run("salloc", "-N2", *command, *script, cwd=tmp_path, check=False)
    assert "--exclude-bad leaves out nodes that fail a check, but no check comes before this run" in done.stderr
