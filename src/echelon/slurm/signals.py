"""Find out which processes Slurm signals."""

from __future__ import annotations

from echelon.errors import EchelonError
from echelon.host import Host

ASK_SECONDS = 5.0


def reach_ranks(host: Host) -> bool:
    """Say whether a signal to a step reaches ranks directly, so that an agent must not pass it on.

    proctrack/linuxproc signals all descendants of a step's tasks, proctrack/cgroup the tasks themselves (SIGKILL
    apart), which are the agents.
    """
    try:
        answer = host.ask(("scontrol", "show", "config"), timeout_seconds=ASK_SECONDS)
    except EchelonError:
        return False  # a repeated signal is better than a lost one
    return "proctrack/linuxproc" in answer.stdout
