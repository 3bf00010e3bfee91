"""`echelon run`: start a script on every rank, here or in a Slurm allocation."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from echelon.cli import readers, run_options
from echelon.cli.help import Help
from echelon.cli.launcher import name_accepted, with_launcher, with_line
from echelon.cli.mistakes import refuse_unread, say_worst
from echelon.cli.options import OPTIONS, Option, Scanned, fields, in_groups
from echelon.cli.preflight import checked, look, observer
from echelon.cli.shared_disk import of_arguments
from echelon.cli.talk import print_json, say
from echelon.errors import UsageError, seen
from echelon.host import Host
from echelon.orders.checkpoint import folder
from echelon.orders.scale import AUTO_FIT, ScaleOptions
from echelon.plan import exchange
from echelon.spec import ALL_NODES, Command, Job, Plan

if TYPE_CHECKING:
    from echelon.jobs.settings import Chain
    from echelon.script.reading import ScriptReading

HELP = Help(
    command="run",
    usage=(
        "[options] SCRIPT [args…]",
        "[options] -m MODULE [args…]",
        "[options] -- PROGRAM [args…]",
        "[options] -- torchrun … (or accelerate, deepspeed, mpirun, srun)",
    ),
    about="Start a script on every device of this machine, or of your Slurm allocation.",
    operands=(Option(names=("SCRIPT",), takes="script"),),
    groups=in_groups(),
    example="echelon run -n 4 --env OMP_NUM_THREADS=8 train.py --epochs 3",
)


def main(arguments: list[str]) -> int:
    scanned = HELP.scan(arguments, OPTIONS)
    if "json" in scanned.values and not {"dry_run", "explain_hooks"} & scanned.values.keys():
        raise UsageError("--json prints the plan of a --dry-run; add --dry-run", hint="echelon run --dry-run --json …")
    return carry_out(scanned)


def carry_out(scanned: Scanned, settle: Callable[[Plan], Plan] = lambda plan: plan) -> int:
    """Run a job, whose plan `settle` may change; with --dry-run, print the plan."""
    scanned, line = with_launcher(scanned)
    if "explain_hooks" in scanned.values:
        from echelon.cli import explain_hooks

        print(explain_hooks.table(scanned, read_job))
        return 0
    job = read_job(scanned)
    if line is not None:
        job = with_line(job, line)
    from echelon.jobs import settings
    from echelon.launch.prepare import prepare
    from echelon.script.reading import of_job

    reading = of_job(job)
    refuse_unread(reading)
    host, chain = Host(), settings.read(job.run_directory)
    if chain is not None:
        from echelon.jobs.course import with_chain

        job = with_chain(job, chain, host)
    if job.scale == AUTO_FIT:
        say(f"tracing {job.command.target} up to its second step, to see how it fits into memory")
    plan = settle(prepare(job, reading=reading))
    if "dry_run" in scanned.values:
        print_plan(plan, as_json="json" in scanned.values)
        return 0
    if plan.node_rank <= 0:  # with nodes that are started by hand, one node says it
        name_accepted(scanned, plan, line)
        for note in (*plan.notes, *of_arguments(plan)):
            print(f"echelon: note: {note}", file=sys.stderr)
    if plan.has_allocation and plan.uses_pool and plan.launch == "warm" and sys.stdin.isatty():
        from echelon.launch import pool

        pool.start_beside(host, say)
    return _start(scanned, job, reading, plan, host, chain)


def _start(
    scanned: Scanned, job: Job, reading: ScriptReading | None, plan: Plan, host: Host, chain: Chain | None
) -> int:
    from echelon.jobs import settings
    from echelon.launch.prepare import is_unshared
    from echelon.launch.start import start

    def say_mistakes() -> None:
        is_asked = plan.node_rank <= 0 and "off" not in scanned.values.get("check", ())
        if is_asked and (plan.packages or plan.own):  # a script with Python's standard library alone trains nothing
            say_worst(reading, scale=plan.scale, run_directory=plan.run_directory)
        if chain is None and job.checkpoints is not None and plan.node_rank <= 0:  # a chain compares by itself
            settings.note_edits(job, reading, folder(plan.environ), os.getcwd(), say)

    def begin() -> int:
        looks = look(scanned.values, plan, host)
        observed = observer(lambda: is_unshared(job, plan, reading), plan)
        fit = checked(scanned.values, job, plan, host)
        if not fit.staged:
            return start(fit, host, looks, say_mistakes, observed)
        from echelon.launch.staging import staged

        with staged(fit, host, say):
            return start(fit, host, looks, say_mistakes, observed)

    if chain is None:
        return begin()
    from echelon.jobs.course import ChainJob

    return ChainJob(chain, reading, folder(plan.environ), host, say).run(begin)


def read_job(scanned: Scanned) -> Job:
    values = scanned.last
    filled = fields(scanned.values, OPTIONS)
    of_scaling = {name: filled.pop(name) for name in ScaleOptions._fields if name in filled}
    named, slots = _hosts(values)
    filled.setdefault("ranks_per_node", readers.ranks_per_node(slots))
    filled.setdefault("max_restarts", run_options.RESTARTS if "checkpoint_every" in values else 0)
    least, most = filled.pop("num_nodes", (ALL_NODES, ALL_NODES))
    if "time" in values and "timeout" in values:
        raise UsageError("--time and --timeout both limit the run", hint=f"remove --timeout {values['timeout']}")
    return Job(
        **_shown(values, filled),
        hosts=named,
        min_nodes=least,
        num_nodes=most,
        scale=run_options.scale(values),
        scale_options=_scale_options(values, of_scaling),
        checkpoints=run_options.order(values),
        rendezvous=_rendezvous(values),
        command=_command(scanned),  # last, because an option without its value has taken the script as the value
    )


def _hosts(values: dict[str, str]) -> tuple[tuple[str, ...], str]:
    """Return the hosts to reach by ssh, and the ranks of each as -n has them."""
    if "hosts" not in values:
        return (), "auto"
    from echelon.scheduler import hosts

    return hosts.read(values)


def _scale_options(values: dict[str, str], filled: dict[str, Any]) -> ScaleOptions:
    exchange.refuse_with_splits(values)
    if "scale_lr" in values and "per_device_batch" not in values:
        raise UsageError(
            "--scale-lr is for a global batch that grows with the ranks, but here it is the script's own batch",
            hint=f"echelon run --per-device-batch --scale-lr {values['scale_lr']} …",
        )
    options = ScaleOptions(**filled, **exchange.fields(values))
    if options.written() and values.get("scale") == "off":
        raise UsageError(
            f"{options.written()[0]} is for a script that echelon scales, but --scale off switches scaling off",
            hint="remove --scale off",
        )
    return options


def _shown(values: dict[str, str], filled: dict[str, Any]) -> dict[str, Any]:
    """Return the fields, with the ranks whose output is shown: those of --debug, --show or torchrun's --tee."""
    if "debug" not in values:
        is_teed = "show" not in values and values.get("tee", "0") not in ("0", "")
        return {**filled, "show": None} if is_teed else filled
    if "show" in values:
        raise UsageError("--debug shows only its rank, but --show asks for others", hint="remove --show")
    return {**filled, "show": frozenset({filled["debug"]})}


def _command(scanned: Scanned) -> Command:
    if scanned.is_program and "module" in scanned.values:
        raise UsageError("-m names a module, and -- a program: use only one of them", hint="echelon run -m MODULE …")
    is_program = (scanned.is_program and not _is_script(scanned)) or "no_python" in scanned.values
    if not scanned.rest:
        raise UsageError("the command line has no script", hint="echelon run -n 2 train.py")
    target, *arguments = scanned.rest
    kind = "program" if is_program else "module" if "module" in scanned.values else "script"
    return Command(kind=kind, target=target, arguments=tuple(arguments))


def _is_script(scanned: Scanned) -> bool:
    """Say whether the word after -- is a script: torchrun's command line may have -- before its script."""
    target = scanned.rest[0] if scanned.rest else ""
    if not target.endswith(".py") or not os.path.isfile(target):
        return False
    of_torchrun = {option.key for option in OPTIONS if option.no_meaning}
    return not os.access(target, os.X_OK) or not of_torchrun.isdisjoint(scanned.values)


def _rendezvous(values: dict[str, str]) -> str:
    """Return host:port at which nodes that are started by hand meet."""
    if "rdzv_endpoint" in values:
        text = values["rdzv_endpoint"]
        host, colon, port = text.rpartition(":")
        if not colon:
            host, port = text, "29400"  # torchrun's default port
        return f"{host}:{_port('--rdzv-endpoint', text, port, hint=f'{host}:29400')}"
    if "master_addr" in values or "master_port" in values:
        port = values.get("master_port", "29500")
        return f"{values.get('master_addr', '127.0.0.1')}:{_port('--master-port', port, port, hint='29500')}"
    return ""


def _port(name: str, text: str, port: str, *, hint: str) -> int:
    """Return a port; 0 means any port to torchrun, which is accepted when no node has to meet another."""
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise UsageError(f"{name} {seen(text)}: give a port, a whole number from 1 to 65535", hint=f"{name} {hint}")
    return int(port)


def print_plan(plan: Plan, *, as_json: bool) -> None:
    from echelon.launch.agents import starts
    from echelon.launch.run_directory import plan_fields

    archive = f"{plan.run_directory}/node.pyz"
    if as_json:
        print_json(**plan_fields(plan), agents=list(starts(plan, archive, os.environ)[0].words))
        return

    width = max(len(reason.what) for reason in plan.reasons)
    for reason in plan.reasons:
        print(f"{reason.what:<{width}}  {reason.value}  ({reason.why})")
    for label, text in (
        ("on", ", ".join(plan.nodes) or "the nodes that meet at " + plan.rendezvous),
        ("imports", ", ".join(plan.preload) or "nothing ahead"),
        *(("stages", f"{item.source} at {item.target}") for item in plan.staged),
        ("run dir", plan.run_directory),
        *(("agents", shlex.join(start.words)) for start in starts(plan, archive, os.environ)),
        ("ranks", shlex.join(plan.argv)),
    ):
        print(f"{label:<{width}}  {text}")
