"""Keep a measured reference in a file of the user's own, laid over what is known of the machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from echelon.errors import UsageError
from echelon.machines import files, merge
from echelon.machines.machine import Machine, Reference
from echelon.machines.write import as_overlay


def keep(machine: Machine, row: Reference, environ: Mapping[str, str]) -> str:
    """Write the row beside those that were kept before, in place of one for the same; return the file's path."""
    # one that lies over a published row has the source of both
    before = [replace(each, source=row.source) for each in machine.references if each.source.startswith(row.source)]
    rows = [each for each in before if not merge.is_same("references", each, row)] + [row]
    own = Machine(
        name=machine.name, title=machine.title, source=machine.source, seen=machine.seen, references=tuple(rows)
    )
    # an underscore sorts after the dot of NAME.toml, over which this is laid
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
