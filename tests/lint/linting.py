"""Lint texts in memory, for the machine of an example."""

import datetime

from echelon.lint.pages import RulePage, default_name, files
from echelon.lint.run import Linted, lint
from echelon.machines.load import load_shipped

TODAY = datetime.date(2026, 11, 21)
MACHINES = load_shipped()


def texts(sources: dict[str, str], *, machine: str = "", today: datetime.date = TODAY) -> Linted:
    """Lint files by name."""
    given = {name: text.encode() for name, text in sources.items()}
    chosen = MACHINES[machine] if machine else None
    return lint(given, today=today, machine=chosen, machines=MACHINES, folder_note=_folder_note)


def _folder_note(path: str) -> str:
    """Take the folder of a rule's example for one of many small files."""
    return "many small files" if path == "/scratch/project/imagenet" else ""


def codes(linted: Linted) -> set[str]:
    return {finding.code for finding in linted.findings}


def example(page: RulePage, text: str) -> Linted:
    """Lint an example of a rule's page."""
    return texts(files(text, default_name(page.code)), machine=page.machine)
