"""The pages of docs/from show what was seen: their losses are those that the task has today."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .lines import FRAMEWORKS, LOSS, losses

PAGES = Path(__file__).parents[2] / "docs" / "from"
OWN_TASK = "trainer.md"  # it learns a text


@pytest.mark.framework("numpy")
def test_losses_of_the_pages_are_those_of_the_task() -> None:
    """Whoever types a line of the pages reads these numbers, whichever framework they have."""
    command = [sys.executable, str(FRAMEWORKS / "task.py"), "--steps", "4"]
    expected = losses(subprocess.run(command, capture_output=True, text=True, check=False))
    wrong, shown = [], 0
    for page in sorted(PAGES.glob("*.md")):
        text = re.sub(r"^\[0\]<stdout>:", "", page.read_text("utf-8"), flags=re.MULTILINE)
        for step, loss in LOSS.findall(text) if page.name != OWN_TASK else []:
            shown += 1
            wrong += [f"{page.name}: {step} {loss}"] if abs(float(loss) - expected[int(step) - 1]) > 2e-6 else []
    assert shown >= 20
    assert wrong == []
