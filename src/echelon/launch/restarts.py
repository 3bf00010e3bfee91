"""Decide whether another attempt follows a failed one."""

from __future__ import annotations

from echelon.launch import failure
from echelon.launch.failure import Failure

MAX_PORT_CLASHES = 3


class Restarts:
    """Count the restarted attempts, and the attempts that only lost a race for a port."""

    def __init__(self, max_restarts: int) -> None:
        self.count = 0
        self._max_restarts = max_restarts
        self._num_port_clashes = 0

    def take(self, reason: Failure, *, has_lost_nodes: bool = False) -> bool:
        """Say whether all ranks should be started again after this failure, and count the restart.

        A restart on fewer nodes, if allowed, is not counted, as with torchrun's --nnodes MIN:MAX.
        """
        if reason.cause in (failure.INTERRUPTED, failure.TIME_LIMIT, failure.MISPLACED):
            return False
        if has_lost_nodes:
            return True
        if reason.cause == failure.PORT_CLASH and self._num_port_clashes < MAX_PORT_CLASHES:
            self._num_port_clashes += 1
            return True
        if self.count < self._max_restarts:
            self.count += 1
            return True
        return False
