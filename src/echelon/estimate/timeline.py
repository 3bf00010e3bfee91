"""Find the peak of live bytes in an event log, and what it is made of; add a second step to a log of one."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from echelon.estimate.log import (
    BACKWARD,
    END,
    ENTER,
    ENTER_BACKWARD,
    FORWARD,
    OPTIMIZER,
    STEP,
    WORKSPACE,
    Event,
    EventLog,
)

BUILDING = "building"
NAMES = {STEP: "forward", FORWARD: "forward", BACKWARD: "backward", OPTIMIZER: "optimizer", END: "end"}
"""Our names of the parts of a training, by the events that begin them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The moment at which the most bytes are live."""

    num_bytes: int
    """The sum of the live tensors' exact sizes, before an allocator rounds them."""
    event: int
    """Position in the log's events."""
    phase: str
    """building, forward, backward or optimizer."""
    block: str
    """The name of the block that computes; empty: none."""
    parts: dict[str, int]
    """Bytes by category, the largest first."""
    activations: dict[str, int]
    """Bytes of activations by module, the largest first."""


def peak(log: EventLog) -> Peak:
    """Return the first moment with the most live bytes."""
    sizes = [tensor.num_bytes for tensor in log.tensors]
    live = most = where = 0
    for position, event in enumerate(log.events):
        if type(event) is int:
            if event >= 0:
                live += sizes[event]
                if live > most:
                    most, where = live, position
            else:
                live -= sizes[-event - 1]
    return _described(log, most, where)


def _described(log: EventLog, most: int, where: int) -> Peak:
    alive = live_tensors(log, where)
    parts: Counter[str] = Counter()
    activations: Counter[str] = Counter()
    for index in alive:
        tensor = log.tensors[index]
        parts[tensor.category] += tensor.num_bytes
        if tensor.category == "activation":
            activations[log.modules[tensor.module] if tensor.module >= 0 else ""] += tensor.num_bytes
    phase, block = _place(log, where)
    return Peak(
        num_bytes=most,
        event=where,
        phase=phase,
        block=block,
        parts=dict(parts.most_common()),
        activations=dict(activations.most_common()),
    )


def live_tensors(log: EventLog, position: int) -> set[int]:
    alive: set[int] = set()
    for event in log.events[: position + 1]:
        if type(event) is int:
            if event >= 0:
                alive.add(event)
            else:
                alive.discard(-event - 1)
    return alive


def _place(log: EventLog, position: int) -> tuple[str, str]:
    phase, open_blocks = BUILDING, list[int]()
    for event in log.events[: position + 1]:
        if isinstance(event, str):
            phase, open_blocks = NAMES[event], []
        elif isinstance(event, tuple):
            if event[0] in (ENTER, ENTER_BACKWARD):
                open_blocks.append(event[1])
            elif event[1] in open_blocks:
                open_blocks.remove(event[1])
    return phase, log.blocks[open_blocks[-1]] if open_blocks else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """The live bytes over the last step."""

    num_bytes: tuple[int, ...]
    """After each allocation and each freeing of the last step; the first value is the bytes before it."""
    phases: tuple[tuple[str, int], ...]
    """Each phase, and the index of its first value."""
    blocks: tuple[tuple[str, int], ...]
    """Each border of a block as "enter name", and the index of the next value."""


def course(log: EventLog) -> MemoryCurve:
    """Return the course of live bytes over the last step, for a plot."""
    begin = last_step(log.events)
    sizes = [tensor.num_bytes for tensor in log.tensors]
    live = sum(sizes[index] for index in live_tensors(log, begin))
    values, phases, blocks = [live], [("forward", 0)], list[tuple[str, int]]()
    for event in log.events[begin + 1 :]:
        if type(event) is int:
            live += sizes[event] if event >= 0 else -sizes[-event - 1]
            values.append(live)
        elif isinstance(event, str):
            phases.append((NAMES[event], len(values)))
        elif isinstance(event, tuple):
            blocks.append((f"{event[0]} {log.blocks[event[1]]}", len(values)))
    return MemoryCurve(num_bytes=tuple(values), phases=tuple(phases), blocks=tuple(blocks))


def layers(log: EventLog) -> dict[str, list[int]]:
    """Return the live bytes over the last step by category, each as long as the course."""
    begin = last_step(log.events)
    now = Counter[str]()
    for index in live_tensors(log, begin):
        now[log.tensors[index].category] += log.tensors[index].num_bytes
    categories = {tensor.category for tensor in log.tensors}
    values = {category: [now[category]] for category in categories}
    for event in log.events[begin + 1 :]:
        if type(event) is int:
            tensor = log.tensors[event if event >= 0 else -event - 1]
            now[tensor.category] += tensor.num_bytes if event >= 0 else -tensor.num_bytes
            for category, column in values.items():
                column.append(now[category])
    return values


def last_step(events: Sequence[object]) -> int:
    return max(position for position, event in enumerate(events) if event == STEP)


def repeated(log: EventLog) -> EventLog:
    """Return the log with its last step once more; what no step leaves behind is replaced as in a loop.

    Gradients of the first step end before the second begins. States of the optimizer stay, and are not made again.
    """
    begin = last_step(log.events)
    end = log.events.index(END) if END in log.events else len(log.events)
    step = log.events[begin:end]
    tensors, events = list(log.tensors), list[Event](log.events[:end])
    made = {event for event in step if type(event) is int and event >= 0}
    kept = made - {-event - 1 for event in step if type(event) is int and event < 0}
    events += [STEP, *(-index - 1 for index in sorted(kept) if log.tensors[index].category == "gradient")]
    copies: dict[int, int] = {}
    for event in step[1:]:
        if type(event) is not int:
            events.append(event)
        elif event < 0 and -event - 1 in copies:
            events.append(-copies[-event - 1] - 1)
        elif event >= 0 and log.tensors[event].category not in ("parameter", "state", "buffer"):
            copies[event] = len(tensors)
            tensors.append(tensors[event])
            events.append(copies[event])
            if event in kept and log.tensors[event].category != "gradient":
                events.append(-event - 1)
    return log.changed(tensors=tensors, events=(*events, END))


@functools.lru_cache(maxsize=4)
def without(log: EventLog) -> EventLog:
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
