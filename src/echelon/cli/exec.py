"""`echelon exec`: the guides' start script in one word."""

from __future__ import annotations

import os

from echelon.environment import become


def main(arguments: list[str]) -> int:
    """Become the program; never returns when that works."""
    become.main(arguments, os.environ)
