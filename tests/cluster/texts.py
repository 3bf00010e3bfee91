"""Read and write what people see: fields of scontrol, ends of logs, failed commands."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    state: str
    """COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL …"""
    exit_code: int
    signal: int
    num_restarts: int


def ended(job: Mapping[str, str]) -> Ended:
    """Read how a job ended from its fields."""
    code, _, number = job["ExitCode"].partition(":")
    return Ended(job["JobState"], int(code), int(number), int(job["Restarts"]))


def fields(line: str) -> dict[str, str]:
    """Read one line of scontrol by field."""
    # JobId=7 JobName=my job UserId=root(0) ...; only a word that ends in = starts a field.
    return dict(re.findall(r"(?:^|(?<= ))([A-Za-z:/]+)=(.*?)(?= [A-Za-z:/]+=|\s*$)", line))


def told(argv: Iterable[str], what: str, output: str, talk: str) -> str:
    """Say what a command did and all that it said."""
    return f"{' '.join(argv)}: {what}\nstdout:\n{output}\nstderr:\n{talk}"


def tail(path: Path) -> str:
    """Return the last lines of a daemon's log."""
    lines = path.read_text(errors="replace").splitlines()
    # Every slurmd complains that Debian's Slurm comes without the PMIx library.
    return "\n".join([line for line in lines if "mpi/pmix" not in line and "MPI:" not in line][-12:])
