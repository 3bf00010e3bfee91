"""What the steps of a trace waited for: the share of each kind, and the kind that bounds them."""

from __future__ import annotations

import os
import re
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from echelon.errors import UsageError
from echelon.monitor.traces import kinds
from echelon.monitor.traces.doings import Doings, Intervals, Launches, bridged, common, union, without
from echelon.monitor.traces.reading import MAKE_ONE, Table, TraceFile

INPUT, COMPUTE, OPTIMIZER, COMMUNICATION = "input", "compute", "optimizer", "communication"
COPIES, LAUNCH, IDLE = "copies", "launch overhead", "idle"
KINDS = (COMPUTE, COMMUNICATION, INPUT, OPTIMIZER, COPIES, LAUNCH, IDLE)
MICROSECONDS = 1e6
LONGEST_BETWEEN = 200.0
"""Microseconds between two operations that count as overhead of Python: eager PyTorch takes some ten of them, a save or
an evaluation much more.
"""
BY_STEPS, BY_OPTIMIZER, WHOLE = "ProfilerStep", "optimizer", "whole trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceVerdict:
    """What a trace says of one rank."""

    path: str
    rank: int
    """-1: neither the trace nor its name says it."""
    world_size: int
    """0: the trace does not say it."""
    device: str
    """What the steps are measured on: "cuda", "hip" or "cpu"."""
    num_devices: int
    counted_by: str
    """What the steps are counted by: ProfilerStep annotations, steps of the optimizer, or nothing: the whole trace."""
    num_steps: int
    seconds: float
    """The time of all steps together."""
    step_seconds: tuple[float, ...]
    """The time of each step; empty if the trace has no steps."""
    shares: dict[str, float]
    """Of each of KINDS, the share of the time; the sum is 1."""
    hidden_communication: float
    """The share of the time in which communication went on beside other work."""
    largest: dict[str, str]
    """Of each kind of work of the devices, the kernel or copy that took most of its time."""
    num_unknown: int
    """The number of kernels of which nothing says what launched them."""
    num_events: int
    damage: str
    """Why the file is not whole; empty where it is."""

    @property
    def bound(self) -> str:
        """The kind with the largest share."""
        return max(KINDS, key=lambda kind: self.shares[kind])

    @property
    def seconds_per_step(self) -> float:
        """The time of a step on average; of the whole trace if it has no steps."""
        return self.seconds / max(self.num_steps, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The times that count, and the steps in them."""

    counted_by: str
    times: Intervals
    steps: tuple[float, ...]


def of(path: str) -> TraceVerdict:
    """Read a trace and judge it; raise UsageError if it has nothing to judge."""
    trace, table = TraceFile(path), Table()
    table.fill(trace)
    if not len(table):
        why = f"; it {trace.damage}" if trace.damage else ""
        raise UsageError(f"{path} has no event of torch.profiler{why}", hint=MAKE_ONE)
    doings = Doings(table.host, len(table.threads))
    if len(table.device):
        launches = Launches(table.host, table.device, doings)
        window = _window(table, launches)
        work, largest = _work(table, launches)
        times, hidden = _on_device(doings, launches, work, window.times)
        num_unknown = sum(
            1 for index, kind in enumerate(launches.kinds) if kind == kinds.OUTSIDE and not table.device.is_copy[index]
        )
    else:
        window, num_unknown, largest = _window(table, None), 0, {}
        times, hidden = _on_cpu(doings, window.times)
    total = window.times.total()
    if not total:
        raise UsageError(f"{path} has only events without a duration", hint=MAKE_ONE)
    rank, world_size = _place(trace)
    return TraceVerdict(
        path=path, rank=rank, world_size=world_size,
        device=("hip" if table.is_hip else "cuda") if len(table.device) else "cpu",
        num_devices=len(table.devices), counted_by=window.counted_by, num_steps=len(window.steps),
        seconds=total / MICROSECONDS, step_seconds=tuple(step / MICROSECONDS for step in window.steps),
        shares={kind: times[kind] / total for kind in KINDS}, hidden_communication=hidden / total,
        largest=largest, num_unknown=num_unknown, num_events=len(table), damage=trace.damage,
    )  # fmt: skip


def _place(trace: TraceFile) -> tuple[int, int]:
    """Return rank and world size, from the trace or from the name of its file."""
    told = trace.fields.get("distributedInfo")
    told = told if isinstance(told, dict) else {}
    rank, size = told.get("rank"), told.get("world_size")
    if not isinstance(rank, int):
        named = re.search(r"rank[-_. ]?([0-9]{1,9})", os.path.basename(trace.path), re.IGNORECASE)
        rank = int(named.group(1)) if named else -1
    return rank, size if isinstance(size, int) else 0


def _window(table: Table, launches: Launches | None) -> Window:
    """Return the steps: ProfilerStep's, else from the end of an optimizer's step to the end of the next."""
    done = _Done(table, launches)
    if table.steps:
        spans = sorted((begin, end, number) for number, begin, end in table.steps)
        times, steps, last_number = Intervals(), [], -2
        for begin, end, number in spans:
            end = done.after(end)
            if number == last_number + 1:  # what lies between two steps belongs to the second one
                begin = times.ends[-1]
            times.add(begin, end)
            steps.append(max(end - begin, 0.0))
            last_number = number
        return Window(counted_by=BY_STEPS, times=union(times), steps=tuple(steps))
    ends = [done.after(end) for end in sorted(table.optimizer_ends)]
    if len(ends) > 1:
        lengths = tuple(after - before for before, after in pairwise(ends))
        return Window(counted_by=BY_OPTIMIZER, times=Intervals((ends[0], ends[-1])), steps=lengths)
    begins = [each for each in (table.host.begins, table.device.begins) if len(each)]
    latest = [each for each in (table.host.ends, table.device.ends) if len(each)]
    return Window(counted_by=WHOLE, times=Intervals((min(map(min, begins)), max(map(max, latest)))), steps=())


class _Done:
    """When the devices had done what the CPU had launched: they lag behind it."""

    def __init__(self, table: Table, launches: Launches | None) -> None:
        self._launched, self._done = array("d"), array("d")
        if launches is None:
            return
        for index in sorted(range(len(launches.times)), key=launches.times.__getitem__):
            self._launched.append(launches.times[index])
            self._done.append(max(table.device.ends[index], self._done[-1] if self._done else 0.0))

    def after(self, time: float) -> float:
        """Return a time of the CPU, or the later one at which the devices had done what was launched until then."""
        number = bisect_right(self._launched, time)
        return max(time, self._done[number - 1]) if number else time


def _on_device(
    doings: Doings, launches: Launches, work: dict[str, Intervals], window: Intervals
) -> tuple[dict[str, float], float]:
    """Return the time of each kind by what the devices did, and in their gaps by what the CPU did."""
    others = [thread for thread in range(len(doings.times)) if thread not in launches.threads]
    active = [
        times
        for kind in (kinds.OPERATION, kinds.OPTIMIZER, kinds.COLLECTIVE)
        for times in doings.of(kind, sorted(launches.threads))
    ]
    return _in_order(
        window,
        [
            (COMPUTE, work[COMPUTE]), (OPTIMIZER, work[OPTIMIZER]), (COMMUNICATION, work[COMMUNICATION]),
            (COPIES, work[COPIES]), (INPUT, union(*doings.of(kinds.INPUT))),
            (COMMUNICATION, union(*doings.of(kinds.COLLECTIVE, others))),
            (LAUNCH, bridged(union(*active), LONGEST_BETWEEN)),
        ],
    )  # fmt: skip


def _work(table: Table, launches: Launches) -> tuple[dict[str, Intervals], dict[str, str]]:
    """Return the times of the devices' work by what launched it, and the largest kernel of each kind."""
    device, found = table.device, {kind: Intervals() for kind in (COMPUTE, OPTIMIZER, COMMUNICATION, COPIES)}
    sums = {kind: [0.0] * len(table.names) for kind in found}
    of_library = {number for name, number in table.names.items() if kinds.is_kernel_of_library(name)}
    for index, launched in enumerate(launches.kinds):
        if device.is_copy[index]:
            kind = COPIES
        elif launched == kinds.COLLECTIVE or (launched == kinds.OUTSIDE and device.names[index] in of_library):
            kind = COMMUNICATION
        else:
            kind = OPTIMIZER if launched == kinds.OPTIMIZER else COMPUTE
        found[kind].add(device.begins[index], device.ends[index])
        sums[kind][device.names[index]] += device.ends[index] - device.begins[index]
    names = list(table.names)
    largest = {kind: names[each.index(max(each))] for kind, each in sums.items() if any(each)}
    return {kind: union(times) for kind, times in found.items()}, largest


def _on_cpu(doings: Doings, window: Intervals) -> tuple[dict[str, float], float]:
    """Return the time of each kind by what the threads did."""
    operations, optimizer = union(*doings.of(kinds.OPERATION)), union(*doings.of(kinds.OPTIMIZER))
    communication = union(*doings.of(kinds.COLLECTIVE))
    between = bridged(union(operations, optimizer), LONGEST_BETWEEN)
    return _in_order(
        window,
        [
            (COMPUTE, operations), (OPTIMIZER, optimizer), (INPUT, union(*doings.of(kinds.INPUT))),
            (COMMUNICATION, communication), (LAUNCH, between),
        ],
    )  # fmt: skip


def _in_order(window: Intervals, order: Sequence[tuple[str, Intervals]]) -> tuple[dict[str, float], float]:
    """Give each time to the first kind that has it; return the sums, and the time of hidden communication."""
    sums, left, hidden = dict.fromkeys(KINDS, 0.0), window, 0.0
    for kind, times in order:
        rest = without(left, times)
        seen = left.total() - rest.total()
        if kind == COMMUNICATION:
            hidden += common(times, window).total() - seen
        sums[kind] += seen
        left = rest
    sums[IDLE] = left.total()
    return sums, hidden
