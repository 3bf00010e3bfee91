"""Trace or run many scripts, each in a fork of one process that has imported PyTorch: `forks.py FILE`, a job a line.

A job is a JSON object: "out" names a file for the result, "folder" where the job works, and either "trace" has the
order of `echelon.tracing.trace`, or "measure" the path of a script that runs for real.
"""

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.train.fitting import measured

from echelon.orders.trace import TraceOrder
from echelon.tracing import trace

AT_A_TIME = 2
SECONDS = 100
LATE = ("torch._dynamo", "torch.optim", "torch.profiler", "torch._inductor.config", "torch.utils.flop_counter")
"""What PyTorch would import in each fork."""


def main(jobs: list[dict[str, Any]]) -> None:
    """Do all jobs."""
    for name in LATE:
        importlib.import_module(name)
    pids: set[int] = set()
    for job in jobs:
        if len(pids) == AT_A_TIME:
            pids.remove(os.wait()[0])
        pid = os.fork()
        if not pid:
            _work(job)
        pids.add(pid)
    for _ in pids:
        os.wait()


def _work(job: dict[str, Any]) -> None:
    """Do a job in a fork, and leave what it prints in OUT.stdout and OUT.stderr."""
    signal.alarm(SECONDS)
    try:
        os.chdir(job["folder"])
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(f"{job['out']}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        if "trace" in job:
            trace.main(TraceOrder(**{**job["trace"], "out": job["out"]}))
        else:
            measured.measure(job["measure"], job["out"])
    except BaseException:  # noqa: BLE001  (the parent reads it)
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


if __name__ == "__main__":
    main([json.loads(line) for line in Path(sys.argv[1]).read_text("utf-8").splitlines()])
