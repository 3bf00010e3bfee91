"""Seeded random faults on four Slurm nodes: each training ends as if nothing had happened."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import Cluster
from tests.cluster.fixture import require_tools
from tests.runs import ECHELON, left_behind
from tests.tiers import pick

from echelon.orders.rehearsal import KINDS

SCRIPT = Path(__file__).with_name("rehearsed.py")
NUM_NODES = 4
NUM_SEEDS = pick(3, soak=29)
"""With seven kinds of faults each: 21 faults in the tier "all", 203 with `make soak`."""
ROUNDING = 1e-6
MOST_LOST = 10
"""Steps between checkpoints, twice: the newest checkpoint may be torn."""
CAUSES = {
    "kill-rank": ("killed by a signal",),
    "freeze-rank": ("hang",),
    "kill-agent": ("lost agent",),
    "drop-node": ("hang", "lost agent"),  # seen from the node's own processes, or from another node
    "fill-disk": ("the disk is full",),
    "tear-checkpoint": ("killed by a signal",),
    "signal-before-limit": ("told to save and end, echelon in charge",),
}

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800), pytest.mark.tier("all")]


def ranks_per_node(seed: int) -> int:
    """Return 4 in the soak; in the tier "all" 2 for the first seed and 1 for the others, as all share two cores."""
    return pick(1 if seed else 2, soak=4)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    require_tools()
    with Cluster(num_nodes=NUM_NODES) as cluster:
        yield cluster


def rehearse(cluster: Cluster, folder: Path, seed: int, *options: str) -> "tuple[dict[str, Any], str]":
    """Rehearse on all nodes of an allocation; return what it found, and its lines."""
    shutil.copy(SCRIPT, folder / "train.py")
    allocate = ("salloc", "--quiet", "--no-kill", f"--nodes={NUM_NODES}", "--exclusive", "--partition=standard-g")
    start = ("rehearse", "-n", str(ranks_per_node(seed)), "--share-devices", "--json", "--seed", str(seed))
    line = (*start, *options, "train.py")
    done = subprocess.run(
        [*allocate, *ECHELON, *line], cwd=folder, env=cluster.environ, capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_training_survives_a_random_fault_of_each_kind(cluster: Cluster, tmp_path: Path, seed: int) -> None:
    """Any rank, any moment, also in the middle of a save: the same bits under --exact, and equal to 1e-6 without."""
    is_exact = seed % 2 == 0
    told, lines = rehearse(cluster, tmp_path, seed, *(("--exact", "16") if is_exact else ()))
    assert told["ranks"] == NUM_NODES * ranks_per_node(seed)
    assert [row["fault"] for row in told["faults"]] == list(KINDS)
    for row in told["faults"]:
        print(json.dumps({"seed": seed, **row}))  # `make soak` shows the rows of docs/reliability.md
        assert row["survives"], (row, lines)
        assert row["same_bits"] if is_exact else row["difference"] <= ROUNDING, row
        assert row["lost_steps"] <= MOST_LOST, row
        assert row["cause"] in CAUSES[row["fault"]], (row["cause"], row["error"], row)
    assert left_behind(str(tmp_path)) == []
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
