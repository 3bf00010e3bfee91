"""The row of the speed table that is about a supervisor with a thousand agents."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from benchmarks.figures import Figure, Row, Spread, at_most
from benchmarks.fleet import RANKS_PER_NODE
from benchmarks.meter import BenchmarkError, Meter
from benchmarks.residents import own_cpu_seconds

NUM_AGENTS = 1024
LIMIT_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """What the events of one run tell, and the kernel of its supervisor."""

    gather_seconds: float
    """From the first agent to the last."""
    start_seconds: float
    """From the last agent's coming to the report of the last started rank."""
    bind_seconds: float
    """From the last agent's coming to the proof that every rank sits where it was planned."""
    cpu_seconds: float
    peak_bytes: int


def fleet(meter: Meter) -> Row:
    """Start 1,024 simulated agents, until each has been told to and all reports are in."""
    starts = [_measure(meter) for _ in range(meter.num_rounds)]
    return Row(
        title=f"supervisor with {NUM_AGENTS:,} simulated agents on loopback",
        figures=(
            Figure(what="all ready to all started", unit="s", target=at_most(3),
                   ours=Spread(tuple(start.start_seconds for start in starts))),
            Figure(what=f"all ready to the binding of {NUM_AGENTS * RANKS_PER_NODE:,} ranks proved", unit="s",
                   target=at_most(1), ours=Spread(tuple(start.bind_seconds for start in starts))),
            Figure(what="supervisor's peak memory (RSS)", unit="MB", target=at_most(150),
                   ours=Spread(tuple(start.peak_bytes / 1e6 for start in starts))),
            Figure(what="supervisor's CPU time, up to the last report", unit="s",
                   ours=Spread(tuple(start.cpu_seconds for start in starts))),
            Figure(what="first agent to last agent", unit="s",
                   ours=Spread(tuple(start.gather_seconds for start in starts))),
        ),
        notes=(f"{RANKS_PER_NODE} ranks per agent; one process simulates all agents, which connect one by one",),
    )  # fmt: skip


def _measure(meter: Meter) -> _Start:
    directory = os.path.join(meter.marks(), "run")
    command = [sys.executable, "-m", "benchmarks.fleet", directory, str(NUM_AGENTS)]
    supervisor = subprocess.Popen([*command, "0"], env=dict(meter.environ), stdout=subprocess.PIPE, text=True)
    port = supervisor.stdout.readline().strip() if supervisor.stdout is not None else ""
    if not port:
        raise BenchmarkError("the supervisor has not started")
    agents = subprocess.Popen([*command, port], env=dict(meter.environ))
    try:
        _wait_for_all(os.path.join(directory, "events.jsonl"), (supervisor, agents))
        cpu_seconds, peak_bytes = own_cpu_seconds(supervisor.pid), _peak_bytes(supervisor.pid)
        supervisor.send_signal(signal.SIGTERM)  # the simulated ranks end as well-behaved ones do
        agents.wait(LIMIT_SECONDS)
    finally:
        supervisor.terminate()
        agents.terminate()
        supervisor.communicate(timeout=LIMIT_SECONDS)
    with open(os.path.join(directory, "events.jsonl")) as file:
        events = [json.loads(line) for line in file]
    came = [event["time"] for event in events if event["event"] == "agent"]
    started = [event["time"] for event in events if event["event"] == "started"]
    bound = [event["time"] for event in events if event["event"] == "bound"]
    return _Start(
        bind_seconds=max(bound) - max(came),
        gather_seconds=max(came) - min(came),
        start_seconds=max(started) - max(came),
        cpu_seconds=cpu_seconds,
        peak_bytes=peak_bytes,
    )


def _wait_for_all(path: str, processes: tuple[subprocess.Popen[str], subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    missing = NUM_AGENTS * (RANKS_PER_NODE + 1)
    with open(path) as events:
        while missing:
            if any(process.poll() is not None for process in processes) or time.monotonic() > deadline:
                raise BenchmarkError(f"{missing} reports of started and bound ranks never came")
            time.sleep(0.1)
            text = events.read()
            missing -= text.count('"event": "started"') + text.count('"event": "bound"')


def _peak_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        found = re.search(r"VmHWM:\s+(\d+) kB", file.read())
    return int(found[1]) * 1024 if found else 0
