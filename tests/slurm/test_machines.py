"""Every machine's batch scripts are taken by a Slurm configured as that machine, and their ranks start there."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cluster import Cluster
from tests.cluster.fixture import require_tools
from tests.plan.cases import CASES, PAST, TODAY, Case, machine
from tests.tiers import has, pick, some

from echelon.plan.book import book
from echelon.scheduler.slurm import batch, plain
from echelon.spec import Booking

from .test_run import REPORT, reports

pytestmark = pytest.mark.slurm
NUM_LIVE = 2
TORCHRUN_CASES = ("2-gpus", "2-nodes")  # ten seconds each, and the others differ in numbers alone
OLD = ("lumi", "roihu", "mahti", "puhti", "hipergator", "perlmutter")  # a QOS in the place of a partition
STARTED = "mahti"
MACHINES = pick(OLD[::2], all=(*OLD, "frontier", "alps", "daint", "leonardo", "snellius", "isambard-ai"))


@pytest.fixture(scope="module", params=MACHINES)
def site(request: pytest.FixtureRequest) -> Iterator[tuple[str, Cluster]]:
    """Offer a cluster like each machine, one after the other."""
    require_tools()
    with Cluster.like(machine(request.param), num_live_nodes=NUM_LIVE) as cluster:
        yield request.param, cluster


def script(booking: Booking, folder: Path, layout: str) -> str:
    heading = batch.Heading(
        job_name="train", made_by="a test", folder=str(folder), output=str(folder / "slurm.out"), after="",
        starter=batch.STARTER,
    )  # fmt: skip
    command = [REPORT, str(folder)]
    if layout == "echelon":
        size = f"--nproc-per-node={booking.ranks_per_node}"  # as submit does: a whole node may have more devices
        words = [sys.executable, "-m", "echelon", "run", size, *command]
        return batch.render(booking, heading, batch.supervised(words, str(folder / "run"), [], ()))
    modules = (f"PATH={Path(sys.prefix) / 'bin'}:$PATH",)
    body = plain.body(booking, layout, command, modules=modules)
    return batch.render(booking, heading, body, tasks_per_node=plain.tasks_per_node(booking, layout))


def submit(cluster: Cluster, folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "job.sh").write_text(text)
    return subprocess.run(
        ["sbatch", "--parsable", *options, str(folder / "job.sh")], cwd=folder, env=cluster.environ,
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip


def cases(name: str) -> list[Case]:
    return [case for case in CASES if case.machine == name]


def test_scripts_are_accepted(site: tuple[str, Cluster], tmp_path: Path) -> None:
    """Slurm takes the script of every case, up to the documented limit."""
    name, cluster = site
    for case in cases(name):
        for layout in ("echelon", "torchrun", "tasks"):
            booking = book(case.request, machine(name), today=TODAY)
            done = submit(cluster, tmp_path, script(booking, tmp_path, layout), "--hold")
            assert done.returncode == 0, (case.id, layout, done.stderr)
            cluster.run("scancel", done.stdout.strip())


@pytest.mark.parametrize("site", pick([STARTED], all=MACHINES), indirect=True, scope="module")
@pytest.mark.parametrize("layout", some(["echelon", "torchrun", "tasks"], 3))
def test_ranks_start(site: tuple[str, Cluster], tmp_path: Path, layout: str) -> None:
    """Where the nodes are live the ranks of each case start, all of them, in their places."""
    name, cluster = site
    for case in cases(name):
        booking = book(case.request, machine(name), today=TODAY)
        is_slow = layout == "torchrun" and (case.name not in TORCHRUN_CASES or (name != MACHINES[0] and not has("all")))
        if booking.num_nodes > NUM_LIVE or is_slow:
            continue
        folder = tmp_path / case.name
        folder.mkdir()
        done = submit(cluster, folder, script(booking, folder, layout), "--wait")
        said = (folder / "slurm.out").read_text() if (folder / "slurm.out").exists() else ""
        assert done.returncode == 0, (case.id, done.stderr, said)
        found = reports(folder)
        assert sorted(found) == list(range(booking.world_size)), (case.id, said)
        for rank, report in found.items():
            environ = report["environ"]
            assert environ["LOCAL_RANK"] == str(rank % booking.ranks_per_node)
            assert environ["WORLD_SIZE"] == str(booking.world_size)


def test_past_the_limit(site: tuple[str, Cluster], tmp_path: Path) -> None:
    """One node past the limit, which we refuse, Slurm refuses too."""
    name, cluster = site
    for case in [case for case in PAST if case.machine == name]:
        within = next(each for each in cases(name) if each.name == "limit")
        booking = book(within.request, machine(name), today=TODAY)
        past = replace(booking, num_nodes=case.request.num_devices // booking.ranks_per_node)
        done = submit(cluster, tmp_path, script(past, tmp_path, "echelon"), "--hold")
        assert done.returncode != 0, (case.id, done.stdout)
