"""Decide whether echelon scales a script, or the script distributes itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echelon.errors import UsageError
from echelon.scale_options import DEFAULT, ScaleOptions
from echelon.spec import Job

if TYPE_CHECKING:
    from echelon.script.imports import Imports


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The way to scale, with its reason."""

    how: str
    """"off", "data", "fsdp", "tensor", "context" or "pipeline"."""
    why: str
    """Empty if no decision was needed."""


def decide(job: Job, imports: Imports | None, read: Callable[[], Imports]) -> Decision:
    """Decide by the options, else by the script; raise UsageError if the two disagree."""
    from echelon.script import distributes

    command = job.command
    if job.scale == "off":
        return Decision(how="off", why="")
    if command.kind == "program" or (job.container and command.kind == "module"):
        if job.checkpoints:
            raise UsageError(
                f"--checkpoint-every is for a Python script, but echelon does not look into {command.target}",
                hint="echelon run --checkpoint-every 10m train.py",
            )
        if job.scale == "auto":
            return Decision(how="off", why="")
        raise UsageError(
            f"--scale {job.scale} is for a Python script, but echelon does not look into {command.target}",
            hint=f"echelon run --scale {job.scale} train.py",
        )
    imports = imports or read()
    reason = distributes.how(imports)
    if job.scale != "auto" and reason:
        raise UsageError(
            f"{command.target} distributes itself: {reason}; scaled, it would share the work twice",
            hint="echelon run --scale off …",
        )
    if job.scale != "auto":
        return Decision(how=job.scale, why=f"--scale {job.scale}")
    trains = distributes.trains(imports)
    is_saved_by_us = job.checkpoints and not distributes.saves_with_echelon(imports)
    written = job.scale_options.written() or (["--checkpoint-every"] if is_saved_by_us else [])
    if written and (reason or not trains):
        fact = f"distributes itself: {reason}" if reason else "does not train: it calls no backward()"
        raise UsageError(
            f"{written[0]} is for a script that echelon scales, but {command.target} {fact}",
            hint=_way_out(job.scale_options, reason),
        )
    if not trains:
        return Decision(how="off", why="")
    if reason:
        return Decision(how="off", why=f"the script distributes itself: {reason}")
    return Decision(how="data", why="the script calls backward(), and nothing in it distributes the work")


def _way_out(options: ScaleOptions, reason: str) -> str:
    """Return the repair for an option of scaling on a script that is not scaled."""
    if not reason:
        return "remove it, or add --scale data if the script trains"
    if reason != "it imports echelon":
        return "remove it"
    if options.num_shards:
        return f"set it in the script: echelon.start(exact={options.num_shards})"
    return "remove it; or call echelon.checkpoints(…) in the script" if options == DEFAULT else "remove it"
