"""`echelon pool` in an allocation: one pool on each node, which every run of the allocation finds."""

import json
import sys
from pathlib import Path

import pytest
from tests.cluster import Cluster
from tests.runs import ECHELON

pytestmark = pytest.mark.slurm
SCRIPT = "import json, os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"


def own_places(folder: Path) -> tuple[str, ...]:
    """Return the words before a command that finds no pool, and no mark of one, of a job with the same number."""
    return "env", f"ECHELON_POOL={folder / 'pools'}", f"XDG_CACHE_HOME={folder / 'cache'}"


def test_runs_of_an_allocation(slurm: Cluster, tmp_path: Path) -> None:
    """Two runs on two nodes are forked from their pools, a third one asks for none; afterwards nothing is left."""
    (tmp_path / "train.py").write_text(SCRIPT)
    echelon = " ".join(ECHELON)
    lines = [
        f"{echelon} pool start",
        *[f"{echelon} run -n 2 --show all {option} train.py" for option in ("", "", "--no-pool")],
        f"{echelon} pool status --json",
        f"{echelon} pool stop",
        f"{echelon} pool status",
    ]
    words = ("--quiet", "-N2", "--ntasks-per-node=1", *own_places(tmp_path), "bash", "-c", "; ".join(lines))
    done = slurm.run("salloc", *words, check=False, cwd=tmp_path, timeout=120)
    assert "echelon: pools of 2 nodes started" in done.stderr
    assert "echelon: the pools of 2 nodes ended; runs go on" in done.stderr
    said, _, status = done.stdout.partition("{")
    assert sorted(line.split("] ")[-1] for line in said.splitlines()) == sorted(
        [f"rank {rank} of 4" for rank in range(4)] * 3
    )
    nodes = json.loads("{" + status.partition("\nno pool")[0])["nodes"]
    assert [(node["node"], node["runs"]) for node in nodes] == [("nid005000", 2), ("nid005001", 2)]
    assert status.endswith("no pool: echelon pool start\n")
    events = [path.read_text().splitlines() for path in sorted(tmp_path.glob("echelon-runs/*/events.jsonl"))]
    pooled = [
        [event["is_pooled"] for event in map(json.loads, lines) if event["event"] == "imported"] for lines in events
    ]
    assert sorted(pooled) == [[False, False], [True, True], [True, True]]
    assert not list(tmp_path.glob("pools/echelon-pool-*"))


def test_first_run_at_a_terminal_starts_pools(slurm: Cluster, tmp_path: Path) -> None:
    """At a terminal of an allocation, the first run starts them and says so; the second one is forked from them."""
    (tmp_path / "train.py").write_text(SCRIPT)
    echelon = " ".join(ECHELON)
    line = "; ".join([*[f"{echelon} run -n 1 train.py"] * 2, f"{echelon} pool stop"])
    terminal = f"import pty; pty.spawn(['bash', '-c', {line!r}])"
    words = ("--quiet", "-N1", "--ntasks-per-node=1", *own_places(tmp_path), sys.executable, "-c", terminal)
    done = slurm.run("salloc", *words, check=False, cwd=tmp_path, timeout=120)
    assert done.stdout.count("keeps what this script imports ready on its nodes for later runs") == 1, done.stdout
    assert done.stdout.count("rank 0 of 1") == 2
    assert "echelon: the pool of this machine ended; runs go on" in done.stdout
    events = [path.read_text() for path in tmp_path.glob("echelon-runs/*/events.jsonl")]
    assert [text.count('"is_pooled": true') for text in events] == [1, 1]
