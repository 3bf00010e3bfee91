"""How a job stands, asked of Slurm's controller."""

from __future__ import annotations

import re
from dataclasses import dataclass

from echelon.errors import EchelonError
from echelon.host import Host

ASK_SECONDS = 20.0
_OVER = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
     "REVOKED", "SPECIAL_EXIT"}
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A job's state in Slurm's word, and its exit code as a shell would have it."""

    name: str
    exit_code: int

    @property
    def is_over(self) -> bool:
        return self.name in _OVER


def state(host: Host, number: str) -> State:
    """Return a job's state; raise EchelonError when Slurm does not answer or has forgotten it."""
    answer = host.ask(("scontrol", "show", "job", "--oneliner", number), timeout_seconds=ASK_SECONDS)
    if answer.exit_code != 0:
        known = "Invalid job id" not in answer.stderr
        raise EchelonError(answer.stderr.strip() if known else f"job {number} is not known to Slurm")
    return read(answer.stdout)


def read(text: str) -> State:
    """Read one line of `scontrol show job`: JobState=FAILED … ExitCode=3:0, or 0:15 for a signal."""
    found = re.search(r"\bJobState=(\S+)", text)
    code = re.search(r"\bExitCode=(\d+):(\d+)", text)
    name = found.group(1) if found else "UNKNOWN"
    exit_code, number = (int(code.group(1)), int(code.group(2))) if code else (0, 0)
    if number:
        exit_code = 128 + number
    return State(name=name, exit_code=exit_code or (1 if name in _OVER - {"COMPLETED"} else 0))
