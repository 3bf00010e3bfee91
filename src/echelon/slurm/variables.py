"""What Slurm's variables tell, beside the allocation."""

from __future__ import annotations

from collections.abc import Mapping

PROGRAMS = ("sbatch", "srun", "salloc", "sinfo")
"""Slurm's own commands that a user of echelon may want to read about."""


def account(environ: Mapping[str, str]) -> str:
    """Return the account that the user's shell names for sbatch or salloc; empty where none does."""
    return next(
        (environ[name] for name in ("SBATCH_ACCOUNT", "SLURM_ACCOUNT", "SALLOC_ACCOUNT") if environ.get(name)), ""
    )


def cluster(environ: Mapping[str, str]) -> str:
    """Return the cluster's name that Slurm puts into a job's environment; empty outside of one."""
    return environ.get("SLURM_CLUSTER_NAME", "")
