"""What a machine's facts add to the environment of every rank."""

import json
import os
import re
from pathlib import Path

import pytest
from tests.cluster import Cluster
from tests.runs import ECHELON

from .test_run import REPORT, reports

pytestmark = pytest.mark.slurm

FACTS = """
name = "{cluster}"
title = "A site"
clusters = ["{cluster}"]
source = "a page"
date = 2026-11-21

[[setting]]
name = "SITE_NETWORK"
value = "hsn0"
why = "the fast network"
source = "a page"
date = 2026-11-21

[[setting]]
name = "SITE_OWN"
value = "theirs"
why = "the site's way"
source = "a page"
date = 2026-11-21

[[setting]]
name = "SITE_CACHE"
value = "{folder}/cache-{{job_id}}-{{node_rank}}"
kind = "folder"
why = "node-local"
source = "a page"
date = 2026-11-21

[[setting]]
name = "SITE_SMALL"
value = "1"
max_nodes = 1
why = "only below two nodes"
source = "a page"
date = 2026-11-21
"""


@pytest.fixture
def site(slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Offer the cluster with a file of facts about it, found by its name."""
    config = slurm.run("scontrol", "show", "config").stdout
    cluster = re.search(r"ClusterName\s*=\s*(\S+)", config)
    assert cluster is not None
    (tmp_path / "site.toml").write_text(FACTS.format(cluster=cluster.group(1), folder=tmp_path))
    monkeypatch.setenv("ECHELON_MACHINES", str(tmp_path / "site.toml"))
    return slurm


def test_ranks_have_the_machines_settings(site: Cluster, tmp_path: Path) -> None:
    """Settings reach every rank, folders are made on each node, and a user's own value wins and is named."""
    out = tmp_path / "out"
    out.mkdir()
    done = site.run(
        "salloc", "--quiet", "-N2", "--ntasks-per-node=2", "env", "SITE_OWN=mine", *ECHELON, "run", "-n", "2",
        "--run-dir", "run", REPORT, str(out), cwd=tmp_path, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = reports(out)
    assert len(found) == 4
    for rank, report in found.items():
        environ = report["environ"]
        assert environ["SITE_NETWORK"] == "hsn0"
        assert environ["SITE_OWN"] == "mine"
        assert "SITE_SMALL" not in environ
        assert environ["SITE_CACHE"] == f"{tmp_path}/cache-{environ['SLURM_JOB_ID']}-{rank // 2}"
        assert os.path.isdir(environ["SITE_CACHE"])
    reasons = json.loads((tmp_path / "run" / "plan.json").read_text())["reasons"]
    told = {reason["value"]: reason["why"] for reason in reasons if reason["what"] == "environment"}
    assert told["SITE_NETWORK=hsn0"] == "the fast network"
    assert told["SITE_OWN=mine"] == "your own value; the machine's is theirs"


def test_value_on_the_command_line_wins(site: Cluster, tmp_path: Path) -> None:
    """What --env says is the user's own too."""
    done = site.run(
        "salloc", "--quiet", "-N1", *ECHELON, "run", "-n", "1", "--env", "SITE_OWN=asked", REPORT, str(tmp_path),
        cwd=tmp_path, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    environ = reports(tmp_path)[0]["environ"]
    assert (environ["SITE_OWN"], environ["SITE_SMALL"]) == ("asked", "1")


def test_ranks_of_a_job_are_bound(site: Cluster, tmp_path: Path) -> None:
    """In a job two ranks of a node have cores of their own without being asked, and the run says that it is proved."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core cannot be divided")
    done = site.run(
        "salloc", "--quiet", "-N2", "--ntasks-per-node=2", *ECHELON, "run", "-n", "2", REPORT, str(tmp_path),
        cwd=tmp_path, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"bound: 4 ranks on 2 nodes, each on \d+ cores? of its own \(proved\)", done.stderr)
    cores = len(os.sched_getaffinity(0)) // 2
    assert {report["cores"] for report in reports(tmp_path).values()} == {cores}
