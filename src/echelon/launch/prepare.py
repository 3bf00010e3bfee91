"""Read the surroundings and the script, decide whether it is scaled, and make the plan: all before the first act."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import stat
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from echelon.dialects import installed, own_starts
from echelon.environment import devices
from echelon.errors import UsageError
from echelon.host import Host
from echelon.launch.run_directory import new_path
from echelon.launch.staged_paths import with_staged
from echelon.orders.scale import AUTO_FIT, DEFAULT, ScaleOptions
from echelon.plan import KnownMachine, Surroundings, resolve
from echelon.scheduler import members
from echelon.script import locate
from echelon.script.imports import Imports
from echelon.script.reading import ScriptReading, of_job, search_path_of_scripts
from echelon.spec import RUNS, Booking, Job, Plan, Tracker

EARLIER_IMPORTS = "ECHELON_EARLIER_IMPORTS"  # a variable of the environment, with names between commas
RUNTIMES = ("singularity", "apptainer")


def prepare(job: Job, host: Host | None = None, *, reading: ScriptReading | None = None) -> Plan:
    """Return the plan of a job on this machine; raise UsageError if it cannot run as asked."""
    host = host or Host()
    reading = reading or of_job(job)
    cwd = os.getcwd()
    signals_reach_ranks = members.ask_about_signals(host)
    refuse_bad_command(job, reading)
    found_imports = reading.imports if reading is not None else None
    allocated = members.allocation_of(host)
    if job.launcher is not None:
        from echelon.dialects.node_layout import with_node_layout

        job = with_node_layout(job, allocated, host)
    ahead = found_imports if job.launch == "warm" else None
    decision = decide(job, reading)
    options = job.scale_options._replace(is_auto=job.scale == "auto")
    job = replace(job, scale=decision.how, scale_options=options)
    run_id = os.urandom(8).hex()
    label = os.path.basename(job.command.target.rstrip("/")).removesuffix(".py").lstrip(".")
    around = Surroundings(
        python=sys.executable,
        node=socket.gethostname(),
        num_devices=len(devices.visible(host.environ)),
        allocation=allocated,
        signals_reach_ranks=signals_reach_ranks(),
        preload=_with_earlier(ahead.preload, host.environ) if ahead else (),
        left_to_ranks=ahead.skipped if ahead else (),
        own=tuple(dict.fromkeys(name.partition(".")[0] for name in found_imports.local)) if found_imports else (),
        packages=found_imports.packages if found_imports else (),
        folder=reading.script.folder if reading is not None else cwd,
        run_id=run_id,
        run_directory=new_path(os.path.join(cwd, RUNS), label, time.time(), run_id),
        site=_site(job, host, allocated.partition if allocated is not None else "", is_in_job=allocated is not None),
        cwd=cwd,
        vendor=devices.vendor(host.environ),
        scale_why=decision.why,
    )
    plan = _fitted(job, around, host) if job.scale == AUTO_FIT else resolve(job, around)
    started = own_starts.python_scripts(job.command, cwd) if job.command.kind == "program" else []
    if options.is_auto:
        own_starts.refuse_repeated_training(started, plan.num_nodes, plan.ranks_per_node)
    uses = found_imports.all_uses if found_imports is not None else ()
    horovod = "horovod" in uses or bool(job.container) or installed.is_there("horovod")
    machine = around.site.machine.name if around.site.machine is not None else ""
    plan = replace(plan, may_use_horovod=horovod, uses_pool=job.uses_pool, machine=machine)
    kind = around.site.kind
    plan = with_staged(plan, job, kind.scratch if kind is not None else "", host.environ)
    if job.trackers:
        plan = _with_trackers(plan, job.trackers, found_imports)
    if found_imports is not None and not (
        found_imports.packages or found_imports.local or found_imports.uses & _STARTS_PROGRAMS
    ):
        return plan  # a script without packages and programs cannot misuse a framework
    from echelon.dialects import ranks, traps

    if reading is not None:
        return replace(plan, notes=(*plan.notes, *traps.refuse(job, ranks.planned(plan), reading, host.environ)))
    traps.refuse_program(job, ranks.planned(plan), started, host.environ)
    return plan


_STARTS_PROGRAMS = frozenset({"os", "subprocess"})


def _with_earlier(preload: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Add what earlier cells of a notebook import: then one pool serves them all."""
    return tuple(dict.fromkeys([*filter(None, environ.get(EARLIER_IMPORTS, "").split(",")), *preload]))


def _with_trackers(plan: Plan, trackers: tuple[Tracker, ...], imports: Imports | None) -> Plan:
    """Return the plan with the trackers to which the script does not log by itself, and a note about each other one."""
    from echelon.script import own_trackers

    signs = {tracker: own_trackers.sign(imports, tracker.name) if imports is not None else "" for tracker in trackers}
    notes = [
        f"--track {tracker.name} writes nothing: the script logs to it by itself ({sign})"
        for tracker, sign in signs.items()
        if sign
    ]
    kept = tuple(tracker for tracker, sign in signs.items() if not sign)
    return replace(plan, trackers=kept, notes=(*plan.notes, *notes))


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


def _site(job: Job, host: Host, partition: str, *, is_in_job: bool) -> KnownMachine:
    """Return what is known of the machine; outside of a job, only if the environment names it."""
    runtimes = tuple(name for name in RUNTIMES if shutil.which(name))
    if not is_in_job and not host.environ.get("ECHELON_MACHINE"):
        return KnownMachine(runtimes=runtimes, environ=host.environ)
    from echelon.machines.detect import detect

    detected = detect(host.environ, host, socket.gethostname())
    if detected is None:
        return KnownMachine(runtimes=runtimes, environ=host.environ)
    from echelon.machines import load

    return KnownMachine(
        machine=load.find(detected.machine_name, host.environ),
        how=detected.how,
        partition=partition,
        rocm="" if job.container else locate.rocm(search_path_of_scripts()),  # an image has its own PyTorch
        environ=host.environ,
        runtimes=runtimes,
    )


def refuse_traps(job: Job, reading: ScriptReading | None, booking: Booking, environ: Mapping[str, str]) -> None:
    """Raise UsageError for mistakes that fail in every rank of a job, before the job waits in a queue."""
    if reading is not None:
        from echelon.dialects import ranks, traps

        traps.refuse(job, ranks.booked(job, booking), reading, environ)


def refuse_bad_command(job: Job, reading: ScriptReading | None) -> None:
    """Raise UsageError for a script or program that cannot be started, before the job waits in a queue."""
    if reading is not None:
        reading.script  # noqa: B018  # raises the error
    elif not job.container:
        _refuse_what_cannot_be_executed(job.command.target)


def _refuse_what_cannot_be_executed(target: str) -> None:
    if shutil.which(target) is not None:
        return
    if os.path.isdir(target):
        raise UsageError(f"{target} is a folder, not a program", hint="echelon run -- /path/to/program …")
    if "/" in target and os.path.exists(target):
        mode = stat.filemode(os.stat(target).st_mode)
        raise UsageError(f"{target} is not executable (its mode is {mode})", hint=f"chmod +x {shlex.quote(target)}")
    raise UsageError(f"there is no program {target!r} on PATH", hint="echelon run -- /path/to/program …")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The way to scale, with its reason."""

    how: str
    """"off", or a way to scale."""
    why: str
    """Empty if no decision was needed."""


def decide(job: Job, reading: ScriptReading | None) -> Decision:
    """Decide by the options, else by the script; raise UsageError if the two disagree."""
    from echelon.script import distributes

    command = job.command
    if job.scale == "off":
        return Decision(how="off", why="")
    if reading is None:
        asked = ["--checkpoint-every 10m"] if job.checkpoints else job.scale_options.written()
        if asked:
            raise UsageError(
                f"{asked[0].split()[0]} is for a Python script, but echelon does not look into {command.target}",
                hint=f"echelon run {asked[0]} train.py",
            )
        if job.scale == "auto":
            return Decision(how="off", why="")
        raise UsageError(
            f"--scale {job.scale} is for a Python script, but echelon does not look into {command.target}",
            hint=f"echelon run --scale {job.scale} train.py",
        )
    imports = reading.imports
    reason = distributes.how(imports)
    if job.scale != "auto" and reason:
        raise UsageError(
            f"{command.target} distributes itself: {reason}; scaled, it would share the work twice",
            hint="echelon run --scale off …",
        )
    if job.scale != "auto":
        return Decision(how=job.scale, why=f"--scale {job.scale}")
    sign = distributes.sign_of_training(imports)
    is_saved_by_us = job.checkpoints and not distributes.saves_with_echelon(imports)
    written = job.scale_options.written() or (["--checkpoint-every"] if is_saved_by_us else [])
    if written and (reason or not sign):
        fact = f"distributes itself: {reason}" if reason else f"does not train: it {distributes.NEEDS}"
        raise UsageError(
            f"{written[0]} is for a script that echelon scales, but {command.target} {fact}",
            hint=_way_out(job.scale_options, reason),
        )
    if not sign:
        return Decision(how="off", why=_why_alone(distributes.update_by_hand(imports), reason))
    if reason:
        return Decision(how="off", why=f"the script distributes itself: {reason}")
    return Decision(how="data", why=f"the script {sign}, and nothing in it distributes the work")


def _why_alone(update: str, distribution: str) -> str:
    """Return why each rank trains all of a script by itself; empty if it distributes itself, or trains nothing."""
    if distribution or not update:
        return ""
    from echelon.script import distributes

    return f"each rank runs the whole script by itself: {update}, but {distributes.NEEDS}, so ranks can share no step"


def is_unshared(job: Job, plan: Plan, reading: ScriptReading | None) -> bool:
    """Say whether a script for one device is left as it is, because reading has found no training in it."""
    if job.scale != "auto" or plan.scale != "off" or reading is None:
        return False
    from echelon.script import distributes

    return not distributes.how(reading.imports)


def _way_out(options: ScaleOptions, reason: str) -> str:
    """Return the repair for an option of scaling on a script that is not scaled."""
    if not reason:
        return "remove it, or add --scale data if the script trains"
    if reason != "it imports echelon":
        return "remove it"
    if options.num_shards:
        return f"set it in the script: echelon.start(exact={options.num_shards})"
    return "remove it; or call echelon.checkpoints(…) in the script" if options == DEFAULT else "remove it"
