"""The variables that tell a process which rank it is; read a variable that must be set, and name a missing one."""

from __future__ import annotations

from collections.abc import Mapping

from . import digits
from .errors import SurroundingError


def present(environ: Mapping[str, str], *names: str) -> str:
    """Return the first of the names that has a value in the environment."""
    for name in names:
        if environ.get(name):
            return name
    raise SurroundingError(
        f"{' or '.join(names)} is not set, although other variables of the same launcher are",
        "let the launcher's variables through: srun --export=ALL, env without -i",
    )


def number(environ: Mapping[str, str], *names: str) -> int:
    """Return the first variable with a value as a number; raise if it is missing or is no number."""
    name = present(environ, *names)
    if not digits.is_number(environ[name]):
        raise SurroundingError(f"{name}={environ[name]!r} is not a number", f"unset {name}")
    return int(environ[name])


def optional(environ: Mapping[str, str], *names: str) -> int | None:
    """Return the first variable with a value as a number; None if all are missing."""
    present_names = [name for name in names if environ.get(name)]
    return number(environ, present_names[0]) if present_names else None


RANK_NAMES = frozenset({
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
    "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "TF_CONFIG",
})  # fmt: skip
