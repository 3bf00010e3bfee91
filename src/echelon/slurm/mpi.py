"""Which of MPI's start protocols Slurm speaks here."""

from __future__ import annotations

import re

from echelon.errors import EchelonError
from echelon.host import Host

ANSWER_SECONDS = 20.0


def offered(host: Host) -> tuple[str, ...]:
    """Return the names that `srun --mpi=list` gives; nothing where Slurm does not answer."""
    try:
        done = host.ask(["srun", "--mpi=list"], timeout_seconds=ANSWER_SECONDS)
    except EchelonError:
        return ()
    return read_list(done.stdout + done.stderr)


def loads(host: Host, name: str) -> bool:
    """Tell whether Slurm can load what it lists: Debian's has pmix without the library that it needs."""
    command = ["srun", f"--mpi={name}", "--test-only", "--nodes=1", "--ntasks=1", "true"]
    try:
        done = host.ask(command, timeout_seconds=ANSWER_SECONDS)
    except EchelonError:
        return False
    return "Invalid MPI type" not in done.stdout + done.stderr


def read_list(said: str) -> tuple[str, ...]:
    r"""Read one name a line after the heading; what a later heading lists are versions of a name above.

    >>> read_list("MPI plugin types are...\n\tpmix\n\tnone\nspecific pmix plugin versions available: pmix_v4\n")
    ('pmix', 'none')
    """
    return tuple(re.findall(r"^(?:srun:)?\s+([\w-]+)$", said, re.MULTILINE))
