"""The ways through src do not become longer: a change that adds a file to one of them takes another one out."""

import re
import subprocess
import sys
from pathlib import Path

MOST_FILES = {"from the command line to a rank's first line": 185, "from a batch to a step": 55}
"""What `tools/journeys.py` counts; on a busy machine 180 and 52 (2026-11-30), on a quiet one a few fewer."""


def test_ways_are_no_longer_than_before() -> None:
    """Both ways are found in a real run, begin where they should, and pass no more files than allowed."""
    tool = Path(__file__).parents[1] / "tools" / "journeys.py"
    done = subprocess.run([sys.executable, tool], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts = {way: int(number) for way, number in re.findall(r"^(\w.*): (\d+) files", done.stdout, re.MULTILINE)}
    assert counts.keys() == MOST_FILES.keys()
    assert {"  cli/run.py", "  node/agent.py", "  train/automatic.py", "  train/batches.py"} <= set(
        done.stdout.splitlines()
    )
    assert all(counts[way] <= MOST_FILES[way] for way in counts), done.stdout
