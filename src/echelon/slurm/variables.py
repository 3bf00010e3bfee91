"""Read Slurm's variables that do not describe the allocation."""

from __future__ import annotations

from collections.abc import Mapping

PROGRAMS = ("sbatch", "srun", "salloc", "sinfo")
"""Slurm's commands whose manual a user of echelon may want to read."""


def account(environ: Mapping[str, str]) -> str:
    """Return the account that the user's shell sets for sbatch or salloc; empty if none."""
    return next(
        (environ[name] for name in ("SBATCH_ACCOUNT", "SLURM_ACCOUNT", "SALLOC_ACCOUNT") if environ.get(name)), ""
    )


def cluster(environ: Mapping[str, str]) -> str:
    """Return the cluster's name from a job's environment; empty outside of a job."""
    return environ.get("SLURM_CLUSTER_NAME", "")
