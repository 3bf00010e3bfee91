"""The page of each rule: the mistake, its consequence with sources, a bad and a good example; the data of this room."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

from echelon.errors import UsageError

FAMILIES = ("request", "launch", "shell", "environment", "program", "settings")
"""The files of pages: codes in the first begin with ECH1, in the second with ECH2, and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePage:
    """The documentation of a rule."""

    code: str
    title: str
    severity: str
    why: str
    source: str
    """The source of the rule, or where the mistake was seen; with version or date if it may change."""
    bad: str
    """A file, or several files, each after a line `==> name`."""
    good: str
    machine: str = ""
    """The machine of the examples."""


def all_pages() -> dict[str, RulePage]:
    return dict(sorted((code, page) for family in FAMILIES for code, page in _of_family(family).items()))


def page_of(code: str) -> RulePage:
    """Return the page of a rule; only its family is read."""
    return _of_family(FAMILIES[int(code[3]) - 1])[code]


@cache
def _of_family(family: str) -> dict[str, RulePage]:
    rows = load(f"pages/{family}.toml").items()
    return {code: RulePage(code=code, **{key: text.strip("\n") for key, text in row.items()}) for code, row in rows}


def find(code: str) -> RulePage:
    """Return a page; raise UsageError with the nearest codes for an unknown code."""
    pages = all_pages()
    page = pages.get(code.upper())
    if page is None:
        near = difflib.get_close_matches(code.upper(), pages, n=3, cutoff=0.5)
        known = f"{next(iter(pages))} to {list(pages)[-1]}"
        raise UsageError(
            f"there is no rule {code!r}; the rules are {known}",
            hint=f"echelon lint --explain {near[0] if near else 'ECH201'}",
        )
    return page


def files(example: str, default: str) -> dict[str, str]:
    """Return the files of an example by name; a single file gets the default name."""
    parts = re.split(r"^==> (\S+)\n", example, flags=re.MULTILINE)
    if len(parts) == 1:
        return {default: example + "\n"}
    return {name: text.rstrip("\n") + "\n" for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def default_name(code: str) -> str:
    """Return the name of the only file of a rule's example."""
    return {"5": "train.py", "6": "ds_config.json"}.get(code[3], "job.sh")


FOLDER = os.path.dirname(os.path.abspath(__file__))


@cache
def load(name: str) -> dict[str, Any]:
    # until Python 3.10 is no longer supported: tomllib is in the standard library from 3.11 on
    reader = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    with open(os.path.join(FOLDER, name), "rb") as file:
        tables: dict[str, Any] = reader.load(file)
    return tables


def words() -> dict[str, Any]:
    """Return Slurm's words, and the names of variables that rules look for."""
    return load("words.toml")
