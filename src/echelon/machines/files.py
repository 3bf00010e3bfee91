"""Find machine files, and parse their texts into tables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from echelon.environment import regular_files
from echelon.errors import UsageError

SITE_FOLDER = "/etc/echelon/machines"
OURS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
FORMAT = 1
_NAME = re.compile(r"""^\s*name\s*=\s*["']([^"']*)["']""", re.MULTILINE)
_FIRST_TABLE = re.compile(r"^\s*\[", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFile:
    """A machine file: its path and its text."""

    path: str
    text: str

    @property
    def name(self) -> str:
        """The machine's name, read without parsing; empty if that fails."""
        table = _FIRST_TABLE.search(self.text)
        match = _NAME.search(self.text, 0, table.start() if table else len(self.text))
        return match.group(1) if match else ""

    def tables(self) -> dict[str, Any]:
        """Parse the text; raise UsageError with the line of a syntax error."""
        toml = _toml()
        try:
            tables: dict[str, Any] = toml.loads(self.text)
        except toml.TOMLDecodeError as error:
            raise UsageError(f"{self.path}: not TOML: {error}", hint=_sample(self.text, str(error))) from None
        if tables.pop("format", FORMAT) != FORMAT:
            raise UsageError(f"{self.path}: this echelon reads format = {FORMAT}", hint=f"format = {FORMAT}")
        return tables


def write(path: str, text: str) -> None:
    """Write a file of the user's beside and rename it, so that a reader finds the old one or the new one."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    beside = f"{path}.{os.getpid()}"
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(beside, path)


def user_folder(environ: Mapping[str, str]) -> str:
    config = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", "/"), ".config")
    return os.path.join(config, "echelon", "machines")


def layers(environ: Mapping[str, str]) -> list[list[MachineFile]]:
    """Return the files of each layer: ours, the site's, the user's, those of $ECHELON_MACHINES."""
    named = [entry for entry in environ.get("ECHELON_MACHINES", "").split(os.pathsep) if entry]
    folders = [_folder(folder) for folder in (OURS, SITE_FOLDER, user_folder(environ))]
    return [*folders, [file for entry in named for file in _entry(entry)]]


def read(path: str) -> MachineFile:
    """Read a file; raise UsageError if that fails."""
    try:
        return MachineFile(path=path, text=regular_files.read_text(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", hint=f"ls -l {path}") from None


def _folder(folder: str) -> list[MachineFile]:
    if not os.path.isdir(folder):
        return []
    return [read(os.path.join(folder, name)) for name in sorted(os.listdir(folder)) if name.endswith(".toml")]


def _entry(entry: str) -> list[MachineFile]:
    path = os.path.expanduser(entry)
    if os.path.isdir(path):
        return _folder(path)
    if not os.path.exists(path):
        raise UsageError(
            f"ECHELON_MACHINES names {entry}, but this file or folder does not exist", hint="unset ECHELON_MACHINES"
        )
    return [read(path)]


def _sample(text: str, error: str) -> str:
    """Return the offending line for a message."""
    match = re.search(r"line (\d+)", error)
    lines = text.splitlines()
    number = int(match.group(1)) if match else 0
    return f"line {number} is: {lines[number - 1].strip()}" if 0 < number <= len(lines) else 'key = "value"'


def _toml() -> Any:
    import importlib
    import sys

    # remove with Python 3.10: the standard library has tomllib from 3.11 on
    return importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
