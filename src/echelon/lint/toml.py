"""The data rows of this room."""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache
from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))


@cache
def load(name: str) -> dict[str, Any]:
    """Return the tables of a TOML file in this folder."""
    # until Python 3.10 is no longer supported: tomllib is in the standard library from 3.11 on
    reader = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    with open(os.path.join(FOLDER, name), "rb") as file:
        tables: dict[str, Any] = reader.load(file)
    return tables


def words() -> dict[str, Any]:
    """Return Slurm's words, and the names of variables that rules look for."""
    return load("words.toml")
