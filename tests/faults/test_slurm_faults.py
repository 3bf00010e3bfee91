"""Whatever happens to a job, its nodes or their daemons: the cause is named and nothing is left running."""

import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cluster import Cluster
from tests.cluster.fixture import require_tools
from tests.runs import Run
from tests.tiers import pick

WORKER = str(Path(__file__).parent / "worker.py")
TIMES = pick(2, all=8, soak=20)
NUM_NODES = 16
NODES_PER_RUN = 2
RANKS_PER_NODE = 2
ORPHAN_SECONDS = 5.0

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wide() -> Iterator[Cluster]:
    """Offer a cluster with nodes enough for several runs that do not share one."""
    require_tools()
    with Cluster(num_nodes=NUM_NODES, slurmd_timeout_seconds=3, message_timeout_seconds=2) as cluster:
        yield cluster


class SlurmRun(Run):
    """A run on a pair of nodes of its own, inside an allocation that salloc made."""

    def __init__(self, folder: Path, cluster: Cluster, nodes: list[str]) -> None:
        self.cluster = cluster
        self.nodes = nodes
        allocate = ("salloc", "--quiet", f"--nodes={NODES_PER_RUN}", f"--nodelist={','.join(nodes)}", "--exclusive",
                    "--partition=standard-g")  # fmt: skip
        environ = {**cluster.environ, "ECHELON_CHECK": ""}  # with what looks at the nodes beside a run
        super().__init__(folder, "-n", str(RANKS_PER_NODE), "--share-devices", WORKER, environ=environ, before=allocate)

    def until_working(self) -> None:
        self.until_started(NODES_PER_RUN * RANKS_PER_NODE)

    @property
    def job(self) -> str:
        return str(self.plan()["job_id"])


def pairs(cluster: Cluster) -> list[list[str]]:
    names = cluster.nodes
    return [names[n : n + NODES_PER_RUN] for n in range(0, len(names), NODES_PER_RUN)]


def strike_many(
    folder: Path,
    cluster: Cluster,
    strike: Callable[[SlurmRun, int], None],
    wanted: str,
    *,
    has_code: bool = True,
    times: int = TIMES,
) -> None:
    """Start runs in waves, let the fault strike each at a random moment, and check how each ends."""
    cluster.reset()
    number = 0
    while number < times:
        wave = [SlurmRun(folder / str(number + n), cluster, nodes) for n, nodes in enumerate(pairs(cluster))]
        for run in wave:
            run.until_working()
        for run in wave:
            time.sleep(random.Random(number).uniform(0, 0.2))
            strike(run, number)
            number += 1
        for run in wave:
            code, _, err = run.finish(seconds=60)
            assert code != 0 or not has_code, err
            assert re.search(wanted.format(node=run.nodes[1]), err), err
            assert run.left_behind(seconds=ORPHAN_SECONDS) == []
        cluster.reset()


@pytest.mark.tier("all")
def test_cancelled_job(tmp_path: Path, wide: Cluster) -> None:
    """scancel is named as what it is."""
    strike_many(tmp_path, wide, lambda run, _: wide.run("scancel", run.job), "ended by Slurm: the job was cancelled")


@pytest.mark.tier("all")
def test_cancelled_step(tmp_path: Path, wide: Cluster) -> None:
    """A step that is cancelled by itself is not taken for the job, which goes on."""
    cause = "ended by Slurm: the step was cancelled, but the job continues"
    strike_many(tmp_path, wide, lambda run, _: wide.run("scancel", f"{run.job}.0"), cause, times=4)


@pytest.mark.tier("all")
def test_node_set_down(tmp_path: Path, wide: Cluster) -> None:
    """A node that the administrator takes down is named."""
    strike_many(tmp_path, wide, lambda run, _: wide.down(run.nodes[1]), "lost node: Slurm reports that {node} is")


@pytest.mark.tier("all")
def test_killed_slurmd(tmp_path: Path, wide: Cluster) -> None:
    """A node whose daemon died is named once Slurm has noticed, and its ranks are ended though Slurm cannot."""

    def strike(run: SlurmRun, _: int) -> None:
        wide.kill_slurmd(run.nodes[1])

    strike_many(tmp_path, wide, strike, "lost node: Slurm reports that {node} is")


@pytest.mark.tier("all")
def test_killed_agent_on_a_node(tmp_path: Path, wide: Cluster) -> None:
    """The node whose agent was killed is named."""

    def strike(run: SlurmRun, _: int) -> None:
        run.kill(next(event for event in run.events("agent") if event["node"] == run.nodes[1])["pid"])

    strike_many(tmp_path, wide, strike, "lost agent: the agent on {node} is gone")


@pytest.mark.tier("all")
def test_killed_rank_on_a_node(tmp_path: Path, wide: Cluster) -> None:
    """The rank that was killed is named with its node."""

    def strike(run: SlurmRun, number: int) -> None:
        ours = [event for event in run.events("started") if event["node"] == run.nodes[1]]
        run.kill(random.Random(number).choice(ours)["pid"])

    wanted = r"rank [23] on {node} \(local rank [01], device [01]\) failed first: killed by a signal"
    strike_many(tmp_path, wide, strike, wanted)


@pytest.mark.tier("all")
def test_killed_supervisor(tmp_path: Path, wide: Cluster) -> None:
    """Agents on every node end their ranks and leave when nobody leads them any more."""

    def strike(run: SlurmRun, _: int) -> None:
        run.kill(run.supervisor)

    strike_many(tmp_path, wide, strike, "", has_code=False)  # the code is salloc's own, which takes no notice
