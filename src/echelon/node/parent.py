"""Notice the death of slurmstepd, which started the agent: without it, Slurm no longer knows of the ranks."""

import os
from typing import Optional

WHY = "slurmstepd, which runs the agent for Slurm, was killed"
_INIT = 1


class Parent:
    """The process that started this agent."""

    def __init__(self, pid: Optional[int]) -> None:
        self._pid = pid  # None: not watched

    @classmethod
    def of_this(cls, is_step: bool) -> "Parent":
        """Watch the parent of this process, if it is a task of Slurm; a container may hide the parent."""
        pid = os.getppid()
        return cls(pid if is_step and pid > _INIT else None)

    def has_died(self) -> bool:
        """Say so once."""
        if self._pid is None or os.getppid() == self._pid:
            return False
        self._pid = None
        return True
