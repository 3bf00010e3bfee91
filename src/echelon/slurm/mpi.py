"""Find the MPI start protocols that Slurm supports here."""

from __future__ import annotations

import re

from echelon.errors import EchelonError
from echelon.host import Host

ANSWER_SECONDS = 20.0


def offered(host: Host) -> tuple[str, ...]:
    """Return the names of `srun --mpi=list`; empty if Slurm does not answer."""
    try:
        done = host.ask(["srun", "--mpi=list"], timeout_seconds=ANSWER_SECONDS)
    except EchelonError:
        return ()
    return read_list(done.stdout + done.stderr)


def loads(host: Host, name: str) -> bool:
    """Say whether Slurm can load a listed protocol: Debian lists pmix without the library that it needs."""
    command = ["srun", f"--mpi={name}", "--test-only", "--nodes=1", "--ntasks=1", "true"]
    try:
        done = host.ask(command, timeout_seconds=ANSWER_SECONDS)
    except EchelonError:
        return False
    return "Invalid MPI type" not in done.stdout + done.stderr


def read_list(said: str) -> tuple[str, ...]:
    r"""Parse one name a line after the heading; a later heading lists versions of the names above.

    >>> read_list("MPI plugin types are...\n\tpmix\n\tnone\nspecific pmix plugin versions available: pmix_v4\n")
    ('pmix', 'none')
    """
    return tuple(re.findall(r"^(?:srun:)?\s+([\w-]+)$", said, re.MULTILINE))
