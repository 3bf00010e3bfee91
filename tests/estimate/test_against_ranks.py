"""The estimate of each rank beside the live bytes of real ranks, which train the same model under that strategy."""

from __future__ import annotations

import functools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.tiers import pick
from tests.train.fitting import traces

from echelon.estimate import strategies, timeline
from echelon.estimate.layout import Layout
from echelon.estimate.log import EventLog, read

PROGRAMS = Path(__file__).parent / "ranks"
PARTS = 0.02
LAYOUTS: list[dict[str, Any]] = [
    {"replicate": 2, "checkpointing": True},
    {"shard": 2},
    {"shard": 2, "reshard": "never"},
    {"tensor": 2, "checkpointing": True},
    {"pipeline": 4, "accumulation": 4},
    {"replicate": 2, "shard": 2},
]
MORE: list[dict[str, Any]] = [
    {"replicate": 2, "accumulation": 2, "checkpointing": True},
    {"shard": 2, "reshard": "after-backward"},
    {"shard": 2, "checkpointing": True},
    {"tensor": 2},
    {"pipeline": 2, "accumulation": 4},
    {"tensor": 2, "shard": 2},
    {"pipeline": 2, "accumulation": 2, "shard": 2},
    {"pipeline": 2, "accumulation": 2, "tensor": 2},
    {"tensor": 2, "shard": 4},
    {"tensor": 4},
    {"replicate": 4, "checkpointing": True},
    {"shard": 4, "reshard": "never"},
    {"shard": 8},
    {"replicate": 4, "shard": 2},
    {"tensor": 2, "pipeline": 2, "accumulation": 2, "shard": 2},
]
LAYOUTS = pick(LAYOUTS[1:2], all=LAYOUTS + MORE)

pytestmark = pytest.mark.timeout(300)


@functools.cache
def traced() -> EventLog:
    """Return the log of the training on one device."""
    with tempfile.TemporaryDirectory() as folder:
        order = traces.order(PROGRAMS / "one_device.py", device="cpu")
        return read(traces.run(Path(folder), {"one": {"trace": order}})["one"])


def measured(folder: Path, layout: Layout, words: dict[str, Any]) -> list[int]:
    """Return the most live bytes of each rank."""
    strategy = {**words, **({"checkpointing": "full"} if layout.checkpointing else {})}
    line = ["-m", "echelon", "run", "-n", str(layout.num_ranks), "--run-dir", str(folder / "run")]
    path = os.pathsep.join((str(traces.ROOT), str(traces.ROOT / "src")))
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    program = [str(PROGRAMS / "split.py"), json.dumps(strategy), str(folder)]
    done = warm.run([*line, *program], cwd=folder, environ=environ)
    assert not done.returncode, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(layout.num_ranks)]


def estimated(layout: Layout) -> list[int]:
    """Return the estimate of each rank: all ranks of the first stage come first."""
    stages = [timeline.peak(strategies.rank_log(traced(), layout, place=place)) for place in range(layout.pipeline)]
    return [stage.num_bytes for stage in stages for _ in range(layout.num_ranks // layout.pipeline)]


@pytest.mark.parametrize("words", LAYOUTS, ids=lambda words: " ".join(map(str, words.values())) + " " + " ".join(words))
def test_live_bytes_of_each_rank(tmp_path: Path, words: dict[str, Any]) -> None:
    """The peak of every rank is within 2 %, and that of the fullest one is what `echelon fit` shows."""
    layout = Layout(**words)
    real, expected = measured(tmp_path, layout, words), estimated(layout)
    assert expected == pytest.approx(real, rel=PARTS)
    assert strategies.memory(traced(), layout).peak.num_bytes == max(expected[0], expected[-1])
