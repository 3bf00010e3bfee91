"""The jobs of a chain in Slurm's words: how one is queued after the other, and how those that wait are cancelled."""

from __future__ import annotations

from collections.abc import Mapping

from echelon.environment import digits
from echelon.errors import EchelonError
from echelon.host import Host
from echelon.slurm import batch

ASK_SECONDS = 30.0
_OWN_SHELL = frozenset({"SLURM_CONF"})  # which cluster; all other variables describe the job that queues
_OF_DEVICES = frozenset({"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"})


def warning(reserve_seconds: int) -> str:
    """Return the value of --signal: USR1 to the batch script alone, so many seconds before the time limit."""
    return f"B:USR1@{reserve_seconds}"


def queue(host: Host, path: str, reserve_seconds: int) -> str:
    """Queue a further job of a chain; return its number, or raise EchelonError with Slurm's reason.

    Jobs of one name with the dependency `singleton` run one after the other, whatever the end of each.
    """
    command = ("sbatch", "--parsable", "--dependency=singleton", f"--signal={warning(reserve_seconds)}", path)
    done = host.ask(command, timeout_seconds=ASK_SECONDS, environ=_environment(host.environ))
    number = done.stdout.strip().partition(";")[0]
    if done.exit_code != 0 or not digits.is_number(number):
        raise EchelonError(batch.without_prefix(done.stderr or done.stdout) or "Slurm gave no reason")
    return number


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the user's environment, without what describes the job that queues another."""
    return {
        name: value
        for name, value in environ.items()
        if name in _OWN_SHELL or not (name.startswith(("SLURM_", "SBATCH_", "SRUN_")) or name in _OF_DEVICES)
    }


def waiting(host: Host, job_name: str) -> tuple[str, ...]:
    """Return the numbers of the jobs of a chain that wait; raise EchelonError if Slurm does not answer."""
    command = ("squeue", "--noheader", "--format=%i", "--states=PENDING", f"--name={job_name}")
    done = host.ask(command, timeout_seconds=ASK_SECONDS)
    if done.exit_code != 0:
        raise EchelonError(done.stderr.strip() or "squeue gave no reason")
    return tuple(done.stdout.split())


def cancel_waiting(host: Host, job_name: str) -> tuple[str, ...]:
    """Cancel the jobs of a chain that wait, and return their numbers; raise EchelonError if that fails."""
    numbers = waiting(host, job_name)
    if numbers:
        done = host.ask(("scancel", "--state=PENDING", *numbers), timeout_seconds=ASK_SECONDS)
        if done.exit_code != 0:
            raise EchelonError(done.stderr.strip() or "scancel gave no reason")
    return numbers


def cancellation(job_name: str) -> str:
    """Return the command by which a person ends a whole chain."""
    return f"scancel --name={job_name}"


def job_end(environ: Mapping[str, str]) -> float | None:
    """Return the time at which Slurm ends this job, in seconds since the epoch; None: this Slurm does not tell."""
    text = environ.get("SLURM_JOB_END_TIME", "")
    return float(text) if digits.is_number(text) else None
