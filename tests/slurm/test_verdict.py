"""What Slurm says of lost nodes, also where it is too busy to say it at once."""

import os
from pathlib import Path

import pytest

from echelon.host import Host
from echelon.scheduler.slurm import verdict

SINFO = """#!/bin/sh
echo turn >>{turns}
if [ "$(wc -l <{turns})" -le {failures} ]; then
  echo 'slurm_load_node: Unable to contact slurm controller (connect failure)' >&2
  exit 1
fi
echo 'nid[005001-005002] down*'
"""


@pytest.fixture
def busy(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a `sinfo` before all others whose controller cannot be reached the first times."""
    program, turns = tmp_path / "sinfo", tmp_path / "turns"
    program.write_text(SINFO.format(turns=turns, failures=request.param))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(verdict, "PAUSE_SECONDS", 0.01)
    return turns


@pytest.mark.parametrize("busy", [0, 2], indirect=True)
def test_busy_controller_is_asked_again(busy: Path) -> None:
    """Two refusals are no answer; the third turn names the node that is down, and no other."""
    assert verdict.nodes_down(["nid005001", "nid005003"], "", Host()) == {"nid005001": "nid005001 is down*"}
    assert busy.exists()


@pytest.mark.parametrize("busy", [verdict.NUM_TURNS], indirect=True)
def test_controller_that_stays_silent(busy: Path) -> None:
    """Then srun's own words are all that is known."""
    said = "srun: error: Node failure on nid005002\n"
    assert verdict.nodes_down(["nid005001", "nid005002"], said, Host()) == {"nid005002": "nid005002 is down"}
    assert len(busy.read_text().split()) == verdict.NUM_TURNS
