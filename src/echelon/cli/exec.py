"""`echelon exec`: the guides' start script in one word."""

from __future__ import annotations

import os

from echelon.environment import become


def main(arguments: list[str]) -> int:
    """Become the program; return only where that does not work."""
    try:
        become.become(arguments, os.environ)
    except SystemExit as end:  # after --help
        return int(end.code or 0)
