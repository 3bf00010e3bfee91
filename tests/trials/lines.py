"""Run a line of `echelon bench`, and judge a refusal and the page."""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests import warm

from echelon.cli.options import Option

PAGE = Path(__file__).parents[2] / "docs" / "bench.md"


def bench(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `echelon bench` with these words."""
    return warm.run(["-m", "echelon", "bench", *words], cwd=folder, timeout=240)


def is_one_error(done: subprocess.CompletedProcess[str], why: str) -> bool:
    """Say whether a line was refused with a reason and a hint, and without a traceback."""
    is_refused = (done.returncode, done.stdout) == (2, "") and why in done.stderr
    return is_refused and "  hint: " in done.stderr and "Traceback" not in done.stderr


def missing_on_page(options: Iterable[Option], heading: str) -> list[str]:
    """Return the names of options that no table of the page has, from a heading on."""
    section = PAGE.read_text("utf-8").partition(f"\n## {heading}")[2]
    names = [name for option in options for name in option.names]
    return [name for name in names if not re.search(rf"^\|.*`{re.escape(name)}[ `].*\|", section, re.MULTILINE)]
