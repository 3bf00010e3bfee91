"""Run a script for real, and print what PyTorch's allocator on the CPU has live, as JSON: `measured.py SCRIPT`.

The bytes are those of the profiler's memory events, which the allocator writes itself. They are given for the phases of
the second step of the optimizers, as marks by the same hooks as in a trace.
"""

import json
import os
import runpy
import sys
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from echelon.train.fitting.course import Course, Traced
from echelon.train.fitting.ledger import Ledger


class Marks(Ledger):
    """Notes marks in the profile, and looks at no operation."""

    def mark(self, *words: Any) -> None:
        if len(words) == 1:
            with record_function(f"mark {words[0]}"):
                pass

    def number(self, tensor: torch.Tensor) -> None:
        return None


def main(script: str) -> None:
    """Run the script, and print {"forward": bytes, "forward peak": bytes, …}."""
    marks = Marks(counts_all=True)
    Course(marks).install()
    sys.argv = [script]
    output = os.dup(1)
    os.dup2(2, 1)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        try:
            runpy.run_path(script, run_name="__main__")
        except Traced:
            pass
    events = []
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            events.append((event.start_ns(), event.nbytes()))
        elif event.name().startswith("mark "):
            events.append((event.start_ns(), event.name()[5:]))
    os.write(output, json.dumps(course_of([event for _, event in sorted(events, key=lambda row: row[0])])).encode())


def course_of(events: "list[int | str]") -> "dict[str, int]":
    """Return the live bytes at the end of each phase of the last step, and the most in each."""
    now = most = 0
    phase, found = "building", {}
    for event in events:
        if isinstance(event, int):
            now += event
            most = max(most, now)
            continue
        found |= {phase: now, f"{phase} peak": most}
        if event == "step":
            found = {}
        phase = "forward" if event == "step" else event
        most = now
    return found


if __name__ == "__main__":
    main(sys.argv[1])
