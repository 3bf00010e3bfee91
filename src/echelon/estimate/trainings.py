"""A training as a person starts it, by which what was estimated is found again when it has run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from echelon.estimate import choice
from echelon.estimate.layout import TRACED, Layout

ONE = "one"
"""The way of a training on one rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training as a person starts it: a run with equal values is a run of it."""

    script: str
    """An absolute path."""
    arguments: tuple[str, ...]
    digest: str
    """SHA-256 of the script's text."""
    how: str
    """The value of --scale; "one" on one rank."""
    num_ranks: int
    has_own_batches: bool
    """--per-device-batch: each rank has the script's batch."""


def as_fields(training: Training) -> dict[str, Any]:
    return {**asdict(training), "arguments": list(training.arguments)}


def rows_of(rows: Iterable[Mapping[str, Any]], training: Training) -> Iterator[Mapping[str, Any]]:
    asked = as_fields(training)
    return (row for row in rows if all(row.get(name) == value for name, value in asked.items()))


def of_script(
    path: str, arguments: tuple[str, ...], how: str, num_ranks: int, *, has_own_batches: bool
) -> Training | None:
    """Return the training of a script, None if it cannot be read; its way is that of one rank if it has one."""
    try:
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None
    return Training(
        script=os.path.realpath(path),
        arguments=arguments,
        digest=digest,
        how=how if num_ranks > 1 else ONE,
        num_ranks=num_ranks,
        has_own_batches=has_own_batches and num_ranks > 1,
    )


def how(layout: Layout) -> str:
    """Return the way by which a run of this layout is known; empty if a run's plan does not tell it."""
    if layout.num_ranks > 1:
        return choice.how(layout)
    is_plain = not (layout.checkpointing or layout.accumulation > 1)
    return ONE if is_plain and (layout.precision, layout.optimizer) == (TRACED, TRACED) else ""
