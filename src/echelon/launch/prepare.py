"""Read the surroundings and the script, and make the plan: everything before the first act."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import stat
import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from echelon.environment import devices
from echelon.errors import UsageError
from echelon.host import Host
from echelon.launch import duplicate_training, scaling
from echelon.launch.run_directory import new_path
from echelon.plan import Site, Surroundings, resolve
from echelon.scale_options import AUTO_FIT
from echelon.spec import RUNS, Booking, Command, Job, Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from echelon.script.find import Script
    from echelon.script.imports import Imports

RUNTIMES = ("singularity", "apptainer")


def prepare(job: Job, host: Host | None = None) -> Plan:
    """Return the plan of a job on this machine; raise UsageError if it cannot run as asked."""
    from echelon.slurm import allocation, gres, signals

    host = host or Host()
    cwd = os.getcwd()
    is_inside = allocation.is_inside(host.environ)
    signals_reach_ranks = _beside(partial(signals.reach_ranks, host)) if is_inside else lambda: False
    folder, found_imports = _read_script(job, cwd)
    allocated = allocation.read(host.environ, partial(gres.ask, host))
    if job.launcher is not None:
        from echelon.launch.launchers.settle import settle

        job = settle(job, allocated, host)
    ahead = found_imports if job.launch == "warm" else None
    decision = scaling.decide(job, found_imports, partial(imports_of, job.command, cwd))
    options = job.scale_options._replace(is_auto=job.scale == "auto")
    job = replace(job, scale=decision.how, scale_options=options)
    run_id = os.urandom(8).hex()
    label = os.path.basename(job.command.target.rstrip("/")).removesuffix(".py")
    around = Surroundings(
        python=sys.executable,
        node=socket.gethostname(),
        num_devices=len(devices.visible(host.environ)),
        allocation=allocated,
        slurm_signals_ranks=signals_reach_ranks(),
        preload=ahead.preload if ahead else (),
        left_to_ranks=ahead.skipped if ahead else (),
        own=tuple(dict.fromkeys(name.partition(".")[0] for name in found_imports.local)) if found_imports else (),
        packages=found_imports.packages if found_imports else (),
        folder=folder,
        run_id=run_id,
        run_directory=new_path(os.path.join(cwd, RUNS), label, time.time(), run_id),
        site=_site(job, host, allocated.partition if allocated is not None else "", is_slurm=allocated is not None),
        cwd=cwd,
        vendor=devices.vendor(host.environ),
        scale_why=decision.why,
    )
    plan = _fitted(job, around, host) if job.scale == AUTO_FIT else resolve(job, around)
    if options.is_auto:
        duplicate_training.refuse(job.command, plan.num_nodes, plan.ranks_per_node, cwd=cwd, search_path=_search_path())
    if found_imports is None or not (found_imports.packages or found_imports.local):
        return plan  # a script without packages cannot misuse a framework
    from echelon.launch.frameworks import horovod, ranks, traps

    notes = traps.refuse(job, ranks.planned(plan), _script(job.command, cwd), host.environ)
    return horovod.with_store(
        job, replace(plan, notes=(*plan.notes, *notes)), found_imports, {**host.environ, **dict(job.environ)}
    )


def _fitted(job: Job, around: Surroundings, host: Host) -> Plan:
    """Return the plan with the simplest way to scale that fits into memory; the first node decides."""
    from echelon.launch import auto_fit

    data = replace(job, scale="data")
    plan = resolve(data, around)
    if plan.node_rank > 0:
        return plan
    fitted = auto_fit.decide(job, plan, around, host)
    plan = resolve(replace(data, scale=fitted.how), replace(around, scale_why=f"--scale {AUTO_FIT}: {fitted.why}"))
    return replace(plan, notes=(f"--scale {AUTO_FIT} takes {fitted.how}: {fitted.why}",))


def _beside(ask: Callable[[], bool]) -> Callable[[], bool]:
    """Ask in a thread, and return the function that waits for the answer: Slurm may be the slowest part of a start."""
    import threading

    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(ask()), daemon=True)
    thread.start()

    def wait() -> bool:
        thread.join()
        return answers[0]

    return wait


def _site(job: Job, host: Host, partition: str, *, is_slurm: bool) -> Site:
    """Return what is known of the machine; outside of Slurm, only if the environment names it."""
    runtimes = tuple(name for name in RUNTIMES if shutil.which(name))
    if not is_slurm and not host.environ.get("ECHELON_MACHINE"):
        return Site(runtimes=runtimes, environ=host.environ)
    from echelon.machines.detect import detect

    detected = detect(host.environ, host, socket.gethostname())
    if detected is None:
        return Site(runtimes=runtimes, environ=host.environ)
    from echelon.machines import load
    from echelon.script import torch_build

    return Site(
        machine=load.find(detected.machine_name, host.environ),
        how=detected.how,
        partition=partition,
        rocm="" if job.container else torch_build.rocm(_search_path()),  # an image has its own PyTorch
        environ=host.environ,
        runtimes=runtimes,
    )


def refuse_traps(job: Job, booking: Booking, environ: Mapping[str, str]) -> None:
    """Raise UsageError for mistakes that fail in every rank of a job, before the job waits in a queue."""
    if job.command.kind != "program" and not (job.container and job.command.kind == "module"):
        from echelon.launch.frameworks import ranks, traps

        traps.refuse(job, ranks.booked(job, booking), _script(job.command, os.getcwd()), environ)


def refuse_scaling(job: Job) -> None:
    """Raise UsageError if the script cannot be scaled as asked, as the run in the job would."""
    scaling.decide(job, None, partial(imports_of, job.command, os.getcwd()))


def refuse_bad_command(job: Job) -> None:
    """Raise UsageError for a script or program that cannot be started, before the job waits in a queue."""
    command = job.command
    if job.container and command.kind == "module":
        return  # the files inside an image are not visible here
    if command.kind != "program":
        from echelon.script import find

        find.resolve(command.target, module=command.kind == "module", cwd=os.getcwd(), search_path=_search_path())
    elif not job.container:
        _refuse_what_cannot_be_executed(command.target)


def _read_script(job: Job, cwd: str) -> tuple[str, Imports | None]:
    """Return the first entry of the script's sys.path, and the script's imports, if they can be read."""
    read = script_and_imports(job, cwd)
    if read is None:
        refuse_bad_command(job)
        return cwd, None
    return read[0].folder, read[1]


def script_and_imports(job: Job, cwd: str) -> tuple[Script, Imports] | None:
    """Return a job's script and its imports; None for a program, and for a module inside an image."""
    command = job.command
    if command.kind == "program" or (job.container and command.kind == "module"):
        return None
    from echelon.script import imports

    script = _script(command, cwd)
    return script, imports.read_imports(script)


def imports_of(command: Command, cwd: str) -> Imports:
    from echelon.script import imports

    return imports.read_imports(_script(command, cwd))


def _script(command: Command, cwd: str) -> Script:
    from echelon.script import find

    return find.resolve(command.target, module=command.kind == "module", cwd=cwd, search_path=_search_path())


def _refuse_what_cannot_be_executed(target: str) -> None:
    if shutil.which(target) is not None:
        return
    if os.path.isdir(target):
        raise UsageError(f"{target} is a folder, not a program", hint="echelon run -- /path/to/program …")
    if "/" in target and os.path.exists(target):
        mode = stat.filemode(os.stat(target).st_mode)
        raise UsageError(f"{target} is not executable (its mode is {mode})", hint=f"chmod +x {shlex.quote(target)}")
    raise UsageError(f"there is no program {target!r} on PATH", hint="echelon run -- /path/to/program …")


def _search_path() -> list[str]:
    """Return sys.path of the script's own Python, after its first entry."""
    ours = os.path.dirname(os.path.abspath(sys.argv[0])) if sys.argv[0] else ""
    return [entry for entry in sys.path if entry not in ("", ours)]
