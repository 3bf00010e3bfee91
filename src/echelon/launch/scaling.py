"""Decide whether echelon scales a script, or the script distributes itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echelon.errors import UsageError
from echelon.scale_options import DEFAULT, ScaleOptions
from echelon.spec import Job, Plan

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
    if not _can_be_read(job):
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
    sign = distributes.sign_of_training(imports)
    is_saved_by_us = job.checkpoints and not distributes.saves_with_echelon(imports)
    written = job.scale_options.written() or (["--checkpoint-every"] if is_saved_by_us else [])
    if written and (reason or not sign):
        fact = f"distributes itself: {reason}" if reason else f"does not train: it {distributes.NEEDS}"
        raise UsageError(
            f"{written[0]} is for a script that echelon scales, but {command.target} {fact}",
            hint=_way_out(job.scale_options, reason),
        )
    if not sign:
        return Decision(how="off", why=_why_alone(distributes.update_by_hand(imports), reason))
    if reason:
        return Decision(how="off", why=f"the script distributes itself: {reason}")
    return Decision(how="data", why=f"the script {sign}, and nothing in it distributes the work")


def _why_alone(update: str, distribution: str) -> str:
    """Return why each rank trains all of a script by itself; empty if it distributes itself, or trains nothing."""
    if distribution or not update:
        return ""
    from echelon.script import distributes

    return f"each rank runs the whole script by itself: {update}, but {distributes.NEEDS}, so ranks can share no step"


def is_unshared(job: Job, plan: Plan, read: Callable[[], Imports]) -> bool:
    """Say whether a script for one device is left as it is, because reading has found no training in it."""
    if job.scale != "auto" or plan.scale != "off" or not _can_be_read(job):
        return False
    from echelon.script import distributes

    return not distributes.how(read())


def _can_be_read(job: Job) -> bool:
    """Say whether the command is a Python script outside of an image."""
    return job.command.kind == "script" or (job.command.kind == "module" and not job.container)


def _way_out(options: ScaleOptions, reason: str) -> str:
    """Return the repair for an option of scaling on a script that is not scaled."""
    if not reason:
        return "remove it, or add --scale data if the script trains"
    if reason != "it imports echelon":
        return "remove it"
    if options.num_shards:
        return f"set it in the script: echelon.start(exact={options.num_shards})"
    return "remove it; or call echelon.checkpoints(…) in the script" if options == DEFAULT else "remove it"
