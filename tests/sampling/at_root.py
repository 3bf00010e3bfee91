"""`python at_root.py ROOT run …`: echelon, whose lookouts look at another tree than this machine's."""

import sys
from dataclasses import replace
from typing import Any

from echelon.cli import main, preflight, run

ROOT = sys.argv.pop(1)
look = preflight.look


def look_at_root(*arguments: Any) -> Any:
    """Ask for the survey of a tree."""
    found = look(*arguments)
    return found and replace(found, asked={**found.asked, "root": ROOT})


run.look = look_at_root
sys.exit(main())
