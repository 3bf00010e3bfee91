"""Measure how long a start takes: from the command to the first line of the script, and to the first all-reduce."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from echelon.errors import RunError
from echelon.host import Host
from echelon.monitor import account, attempts, recorded
from echelon.trials import own_runs
from echelon.trials.own_runs import Say
from echelon.trials.question import Size
from echelon.units import aligned, counted, step_time

PROGRAM = "echelon.trials.first_all_reduce"
COMMAND = "bench start"
PARTS = ("before", "import", "ranks", "first line", "meeting")  # the parts of a start, in their order
HEAD = ("ranks", "nodes", *PARTS, "to first line", "to all-reduce", "range")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTimes:
    """One start; all times are in seconds from the command."""

    size: Size
    begun: float
    """The run directory is ready: the supervisor begins."""
    import_seconds: float
    """The imports of the warm process, once for all ranks of a node."""
    ready: float
    """The last rank was started."""
    first_line: float
    """The first line of the script, on rank 0."""
    all_reduced: float
    """The end of the first all-reduce, on rank 0."""

    @property
    def parts(self) -> dict[str, float]:
        """Return the seconds of each part; together they are the time to the first all-reduce.

        The last rank may be started after rank 0 has reached its first line.
        """
        ready = min(self.ready, self.first_line)
        return {
            "before": self.begun,
            "import": self.import_seconds,
            "ranks": ready - self.begun - self.import_seconds,
            "first line": self.first_line - ready,
            "meeting": self.all_reduced - self.first_line,
        }


def measure(
    sizes: Sequence[Size], *, num_repeats: int, options: Sequence[str], host: Host, say: Say, folder: str
) -> Iterator[StartTimes]:
    """Start a small program at each size, all sizes once before any again; raise RunError if a start fails."""
    for repeat in range(1, num_repeats + 1):
        for size in sizes:
            again = f", start {repeat} of {num_repeats}" if num_repeats > 1 else ""
            say(f"{counted(size.num_ranks, 'rank')}{again} …")
            yield _started(size, os.path.join(folder, f"{size.num_ranks}-ranks-{repeat}"), options, host)


def refuse_what_cannot_run(sizes: Sequence[Size], options: Sequence[str], host: Host) -> None:
    """Raise UsageError for a size that `echelon run` will not accept."""
    for size in sizes:
        own_runs.refuse_what_cannot_run(host, [*size.words, *_words(options)], command=COMMAND)


def plan_of(options: Sequence[str], host: Host) -> dict[str, Any]:
    shared = [option for option in options if option != "--share-devices"]
    told = own_runs.refuse_what_cannot_run(host, ["--json", *_words(shared)], command=COMMAND)
    plan: dict[str, Any] = json.loads(told)
    return plan


def _started(size: Size, run: str, options: Sequence[str], host: Host) -> StartTimes:
    out = f"{run}.json"
    began = host.now()
    words = ["--show", "none", "--run-dir", run, *size.words, *_words(options), out]
    done = own_runs.finish(host, words)
    if done.exit_code or not os.path.exists(out):
        ranks = counted(size.num_ranks, "rank")
        raise RunError(f"the start of {ranks} failed:", details=own_runs.without_logs(done.stdout))
    with open(out, encoding="utf-8") as file:
        moments = json.load(file)
    files = recorded.read(run)
    accounted = account.of_run(files)
    supervised = float(files.events[0]["time"])
    return StartTimes(
        size=replace(size, num_nodes=accounted.num_nodes),
        begun=supervised - began,
        import_seconds=accounted.seconds_of(attempts.IMPORT),
        ready=(accounted.attempts[0].ready or supervised) - began,
        first_line=moments["first_line"] - began,
        all_reduced=moments["all_reduced"] - began,
    )


def _words(options: Sequence[str]) -> list[str]:
    return ["--scale", "off", "--check", "off", *options, "-m", PROGRAM]


def text(starts: Sequence[StartTimes]) -> str:
    """Return a table with the middle start of each size; the range is that of the time to the first all-reduce."""
    table = [HEAD, *(_cells(of_size) for of_size in _by_size(starts))]
    return "\n".join(aligned(table, to_right=True)) + "\n"


def as_plain(starts: Sequence[StartTimes]) -> dict[str, Any]:
    rows = [
        {
            "ranks": start.size.num_ranks,
            "nodes": start.size.num_nodes,
            "first_line_seconds": start.first_line,
            "all_reduce_seconds": start.all_reduced,
            "parts": start.parts,
        }
        for start in starts
    ]
    return {"format": 1, "starts": rows}


def _by_size(starts: Sequence[StartTimes]) -> list[list[StartTimes]]:
    numbers = sorted({start.size.num_ranks for start in starts})
    return [
        sorted((start for start in starts if start.size.num_ranks == number), key=lambda start: start.all_reduced)
        for number in numbers
    ]


def _cells(of_size: Sequence[StartTimes]) -> tuple[str, ...]:
    middle = of_size[(len(of_size) - 1) // 2]
    most, least = of_size[-1].all_reduced, of_size[0].all_reduced
    return (
        str(middle.size.num_ranks),
        str(middle.size.num_nodes),
        *(step_time(max(0.0, middle.parts[part])) for part in PARTS),
        step_time(middle.first_line),
        step_time(middle.all_reduced),
        f"{step_time(least)} to {step_time(most)}" if len(of_size) > 1 else "–",
    )
