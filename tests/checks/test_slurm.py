"""`echelon check` in allocations of a real Slurm."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import Cluster
from tests.runs import ECHELON

pytestmark = pytest.mark.slurm


def check(
    slurm: Cluster, folder: Path, options: str, *arguments: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    pairs = [f"{name}={value}" for name, value in environ.items()]
    return slurm.run(
        "salloc", "--quiet", *options.split(), "env", *pairs, *ECHELON, "check", *arguments,
        check=False, cwd=folder, timeout=120,
    )  # fmt: skip


def answer(slurm: Cluster, folder: Path, options: str, *arguments: str, **environ: str) -> dict[str, Any]:
    done = check(slurm, folder, options, "--json", *arguments, **environ)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_all_nodes_answer_through_one_step(slurm: Cluster, tmp_path: Path) -> None:
    """Every node is surveyed under Slurm's name for it, reaches the others, and nothing is left in the folder."""
    found = answer(slurm, tmp_path, "-N4 --ntasks-per-node=1 --cpus-per-task=8", "-n", "4")
    assert [survey["node"] for survey in found["surveys"]] == ["nid005000", "nid005001", "nid005002", "nid005003"]
    assert not any(survey["silent"] or survey["unreached"] for survey in found["surveys"])
    assert {survey["software"]["packages"].get("torch") for survey in found["surveys"]} != {None}
    assert found["exclude"] == []
    assert not list(tmp_path.iterdir())


def test_what_all_nodes_have_is_told_once(slurm: Cluster, tmp_path: Path) -> None:
    """A variable of the job is found on all nodes, and told in one row; no node is to be left out for it."""
    done = check(slurm, tmp_path, "-N3", "--fast", "-n", "1", TRITON_CACHE_DIR="/tmp/$(whoami)", NCLL_DEBUG="INFO")
    rows = [line.split("  ") for line in done.stdout.splitlines() if "nothing reads NCLL_DEBUG" in line]
    assert done.returncode == 1, done.stdout
    assert [[word.strip() for word in row if word.strip()][:2] for row in rows] == [["warning", "all"]]
    assert "3 nodes alike: " in done.stdout
    assert "leave these nodes out" not in done.stderr


def test_devices_of_the_job_that_cannot_be_seen(slurm: Cluster, tmp_path: Path) -> None:
    """Slurm's word for the number of devices is compared with what is there: none, on this cluster without any."""
    found = answer(slurm, tmp_path, "-N2 --gpus-per-node=8 --cpus-per-gpu=1", "--fast")
    rows = [each for each in found["findings"] if each["check"] == "devices"]
    assert [(each["severity"], each["message"], len(each["nodes"])) for each in rows] == [
        ("warning", "the job has 8 devices, but this node sees none of them", 2)
    ]


def test_within_a_task_the_node_alone_is_checked(slurm: Cluster, tmp_path: Path) -> None:
    """`srun echelon check` looks at the node of each task, and starts no step in a step."""
    done = slurm.run(
        "srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", *ECHELON, "check", "--fast",
        check=False, cwd=tmp_path, timeout=120,
    )  # fmt: skip
    assert done.stdout.count("on 1 node in") == 2, done.stdout + done.stderr


def test_a_bad_node_is_named_for_slurm(slurm: Cluster, tmp_path: Path) -> None:
    """A node whose daemon has one core has too few for two ranks: --exclude-bad prints it, as Slurm takes it."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core cannot be made fewer")
    daemon = slurm.slurmd_pid("nid005002")
    before = os.sched_getaffinity(daemon)
    os.sched_setaffinity(daemon, {min(before)})
    try:
        done = check(slurm, tmp_path, "-N4 --ntasks-per-node=1", "--fast", "-n", "2", "--exclude-bad")
    finally:
        os.sched_setaffinity(daemon, before)
    assert done.stdout == "--exclude=nid005002\n", done.stderr
    assert done.returncode == 1
    assert "3 nodes alike: " in done.stderr
    assert "nid005002 differs: 2 ranks on 1 core" in done.stderr
    done = check(slurm, tmp_path, "-N4 --ntasks-per-node=1", "--fast", "-n", "2", "--exclude-bad")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.tier("all")
def test_collectives_over_nodes(slurm: Cluster, tmp_path: Path) -> None:
    """All-reduce is measured over three nodes, and among them in groups; nothing is left behind."""
    found = answer(slurm, tmp_path, "-N3 --ntasks-per-node=1", "--fast", "--collectives", "-n", "1")
    measured = found["collectives"]
    assert (measured["num_ranks"], measured["nodes"]) == (3, [0, 1, 2])
    assert [row["is_right"] for row in measured["sweep"]] == [True] * 3
    row = measured["sweep"][-1]
    assert row["bus_bytes_per_second"] == pytest.approx(row["bytes"] / row["seconds"] * 2 * 2 / 3)
    assert sorted(node for group in measured["rounds"][0]["groups"] for node in group["nodes"]) == [0, 1, 2]
    assert not list(tmp_path.iterdir())
