"""Whom Slurm bills when nobody says it."""

from __future__ import annotations

from collections.abc import Mapping


def account(environ: Mapping[str, str]) -> str:
    """Return the account that the user's shell names for sbatch or salloc; empty where none does."""
    return next(
        (environ[name] for name in ("SBATCH_ACCOUNT", "SLURM_ACCOUNT", "SALLOC_ACCOUNT") if environ.get(name)), ""
    )
