"""Keep a measured reference in the user's own file, as an overlay of the known machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from echelon.errors import UsageError
from echelon.machines import files, merge
from echelon.machines.machine import Machine, Reference
from echelon.machines.write import as_overlay


def keep(machine: Machine, row: Reference, environ: Mapping[str, str]) -> str:
    """Write the row beside earlier ones, in place of an equal one; return the file's path."""
    # an overlay of a published row has both sources
    before = [replace(each, source=row.source) for each in machine.references if each.source.startswith(row.source)]
    rows = [each for each in before if not merge.is_same("references", each, row)] + [row]
    own = Machine(
        name=machine.name, title=machine.title, source=machine.source, seen=machine.seen, references=tuple(rows)
    )
    # in file names, an underscore sorts after the dot of NAME.toml, which this file overlays
    path = os.path.join(files.user_folder(environ), f"{machine.name}_measured.toml")
    text = as_overlay(own, comments=("Written by echelon check --collectives --keep.",))
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(f"{path}.{os.getpid()}", path)
    except OSError as error:
        raise UsageError(
            f"echelon cannot write {path}: {error.strerror}", hint="XDG_CONFIG_HOME=FOLDER echelon check …"
        ) from None
    return path
