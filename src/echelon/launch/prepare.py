"""Look around, read the script, and make the plan: everything before the first act."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from functools import partial

from echelon.environment import devices
from echelon.errors import UsageError
from echelon.host import Host
from echelon.launch.run_directory import new_path
from echelon.plan import Surroundings, resolve
from echelon.spec import Job, Plan

RUNS = "echelon-runs"


def prepare(job: Job, host: Host | None = None) -> Plan:
    """Return the plan of a job on the machine one stands on; raise UsageError when it cannot run as asked."""
    from echelon.slurm import allocation, gres, signals

    host = host or Host()
    cwd = os.getcwd()
    folder, preload = _read_script(job, cwd)
    found = allocation.read(host.environ, partial(gres.ask, host))
    run_id = os.urandom(8).hex()
    label = os.path.basename(job.command.target.rstrip("/")).removesuffix(".py")
    around = Surroundings(
        python=sys.executable,
        node=socket.gethostname(),
        num_devices=len(devices.visible(host.environ)),
        allocation=found,
        slurm_signals_ranks=found is not None and signals.reach_ranks(host),
        preload=preload,
        folder=folder,
        run_id=run_id,
        run_directory=new_path(os.path.join(cwd, RUNS), label, time.time(), run_id),
    )
    plan = resolve(job, around)
    return plan if os.path.isabs(plan.run_directory) else _absolute(plan, cwd)


def _absolute(plan: Plan, cwd: str) -> Plan:
    from dataclasses import replace

    return replace(plan, run_directory=os.path.join(cwd, plan.run_directory))


def _read_script(job: Job, cwd: str) -> tuple[str, tuple[str, ...]]:
    """Return what Python will put first on sys.path, and what a warm process should import."""
    command = job.command
    if command.kind == "program":
        if shutil.which(command.target) is None:
            raise UsageError(
                f"there is no program {command.target!r} on PATH", hint="echelon run -- /path/to/program …"
            )
        return cwd, ()
    from echelon.script import find, imports

    script = find.resolve(command.target, module=command.kind == "module", cwd=cwd, search_path=_search_path())
    if job.launch != "warm":
        return script.folder, ()
    return script.folder, imports.read_imports(script).preload


def _search_path() -> list[str]:
    """Return sys.path as the script's own Python will have it, after its first entry."""
    ours = os.path.dirname(os.path.abspath(sys.argv[0])) if sys.argv[0] else ""
    return [entry for entry in sys.path if entry not in ("", ours)]
