"""Workspaces of convolutions: the log has the most that a library may take, and nobody knows what it takes."""

from __future__ import annotations

import functools

from echelon.estimate.log import WORKSPACE, EventLog


@functools.lru_cache(maxsize=4)
def without(log: EventLog) -> EventLog:
    """Return the log without them."""
    if not has_any(log):
        return log
    are_workspaces = [tensor.category == WORKSPACE for tensor in log.tensors]
    events = [
        event
        for event in log.events
        if type(event) is not int or not are_workspaces[event if event >= 0 else -event - 1]
    ]
    return log.changed(events=events)


@functools.lru_cache(maxsize=4)
def has_any(log: EventLog) -> bool:
    """Say whether a convolution was traced."""
    return any(tensor.category == WORKSPACE for tensor in log.tensors)
