"""`echelon run`: start a script on every rank, here or in a Slurm allocation."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING

from echelon.cli import run_options
from echelon.cli.help import Help
from echelon.cli.launcher import name_accepted, with_launcher, with_line
from echelon.cli.mistakes import refuse_unread, say_worst
from echelon.cli.options import (
    BINDS,
    LAUNCHES,
    LEARNING_RATE_RULES,
    OPTIONS,
    VISIBLE,
    Option,
    Scanned,
    in_groups,
    scan,
)
from echelon.cli.preflight import checked, look, observer
from echelon.cli.talk import print_help, say
from echelon.errors import UsageError
from echelon.orders.scale import AUTO_FIT, ScaleOptions
from echelon.plan import exchange
from echelon.spec import ALL_NODES, ONE_PER_DEVICE, Command, Job, Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from echelon.host import Host
    from echelon.jobs.settings import Chain
    from echelon.script.reading import Reading

MAX_RANKS = 1 << 20

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
    """Run a job."""
    scanned = scan(arguments)
    if "help" in scanned.values:
        print_help(HELP.text())
        return 0
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
    from echelon.host import Host
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
        for note in plan.notes:
            print(f"echelon: note: {note}", file=sys.stderr)
    return _start(scanned, job, reading, plan, host, chain)


def _start(scanned: Scanned, job: Job, reading: Reading | None, plan: Plan, host: Host, chain: Chain | None) -> int:
    """Start a run, or a job of a chain; return the exit code."""
    from echelon.jobs import settings
    from echelon.launch.prepare import is_unshared
    from echelon.launch.start import start
    from echelon.orders.checkpoint import folder

    def say_mistakes() -> None:
        is_asked = plan.node_rank <= 0 and "off" not in scanned.values.get("check", ())
        if is_asked and (plan.packages or plan.own):  # a script with Python's standard library alone trains nothing
            say_worst(reading, scale=plan.scale, run_directory=plan.run_directory)
        if chain is None and job.checkpoints is not None and plan.node_rank <= 0:  # a chain compares by itself
            settings.note_edits(job, reading, folder(plan.environ), os.getcwd(), say)

    def begin() -> int:
        looks = look(scanned.values, plan, host)
        observed = observer(lambda: is_unshared(job, plan, reading))
        return start(checked(scanned.values, job, plan, host), host, looks, say_mistakes, observed)

    if chain is None:
        return begin()
    from echelon.jobs.course import ChainJob

    return ChainJob(chain, reading, plan, host, say).run(begin)


def read_job(scanned: Scanned) -> Job:
    """Return the job that a command line describes."""
    values = {key: found[-1] for key, found in scanned.values.items()}
    named, slots = _hosts(values)
    least, most = _nodes(values["nnodes"]) if "nnodes" in values else (ALL_NODES, ALL_NODES)
    return Job(
        ranks_per_node=_ranks_per_node(values.get("nproc_per_node", slots)),
        hosts=named,
        min_nodes=least,
        num_nodes=most,
        num_spares=_whole("--spares", values.get("spares", "0"), least=0),
        cpus_per_rank=_whole("--cpus-per-task", values["cpus_per_task"], least=1) if "cpus_per_task" in values else 0,
        launch=_one_of("--launch", values.get("launch", "warm"), LAUNCHES),
        visible=_one_of("--visible", _visible(values), VISIBLE),
        scale=run_options.scale(values),
        scale_options=_scale_options(values),
        bind=_one_of("--bind", values.get("bind", "auto"), BINDS),
        container=_image(values),
        container_binds=tuple(scanned.values.get("container_bind", ())),
        global_batch=_whole("--global-batch", values["global_batch"], least=1) if "global_batch" in values else 0,
        share_devices="share_devices" in values,
        environ=tuple(_pair(text) for text in scanned.values.get("env", ())),
        run_directory=_run_directory(values),
        name=values.get("rdzv_id", "none"),
        show=_show(values),
        debug=_debug(values),
        timeout_seconds=run_options.of_run(values),
        hang_timeout=run_options.of_hang(values),
        max_restarts=_whole("--max-restarts", values.get("max_restarts", run_options.restarts(values)), least=0),
        checkpoints=run_options.order(values),
        node_rank=_whole("--node-rank", values["node_rank"], least=0) if "node_rank" in values else -1,
        rendezvous=_rendezvous(values),
        command=_command(scanned),  # last, because an option without its value has taken the script as the value
    )  # fmt: skip


def _hosts(values: dict[str, str]) -> tuple[tuple[str, ...], str]:
    """Return the hosts to reach by ssh, and the ranks of each as -n has them."""
    if "hosts" not in values:
        return (), "auto"
    from echelon.scheduler import hosts

    return hosts.read(values)


def _scale_options(values: dict[str, str]) -> ScaleOptions:
    exchange.refuse_with_splits(values)
    rule = ""
    if "scale_lr" in values:
        rule = _one_of("--scale-lr", values["scale_lr"], LEARNING_RATE_RULES)
        if "per_device_batch" not in values:
            raise UsageError(
                "--scale-lr is for a global batch that grows with the ranks, but here it is the script's own batch",
                hint=f"echelon run --per-device-batch --scale-lr {rule} …",
            )
    options = ScaleOptions(
        checks_first_step="no_check" not in values,
        shards_evaluation="shard_eval" in values,
        syncs_batch_norm="sync_bn" in values,
        watches_bits="watch_bits" in values,
        draws_all="same_random" in values,
        keeps_batch="per_device_batch" in values,
        learning_rate=rule,
        num_shards=_shards(values) if "exact" in values else 0,
        **exchange.fields(values),
    )
    if options.written() and values.get("scale") == "off":
        raise UsageError(
            f"{options.written()[0]} is for a script that echelon scales, but --scale off switches scaling off",
            hint="remove --scale off",
        )
    return options


def _shards(values: dict[str, str]) -> int:
    """Return the number of virtual shards of `--exact`."""
    number = _whole("--exact", values["exact"], least=2)
    if number & (number - 1):
        nearest = 1 << (number.bit_length() - 1)
        raise UsageError(
            f"--exact {number}: a binary tree adds up the shards, so their number must be a power of two",
            hint=f"--exact {nearest}   or --exact {nearest * 2}",
        )
    return number


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


def _whole(name: str, text: str, *, least: int) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,12}", text) or not least <= int(text) <= MAX_RANKS:
        raise UsageError(
            f"{name} {_seen(text)}: give a whole number of at least {least}", hint=f"{name} {max(least, 1)}"
        )
    return int(text)


def _ranks_per_node(text: str) -> int:
    if text == "auto":
        return ONE_PER_DEVICE
    if text == "cpu":
        from echelon.environment import threads

        return threads.num_cores()
    if text in ("gpu", "xpu"):
        return ONE_PER_DEVICE
    if not re.fullmatch(r"[+-]?[0-9]{1,12}", text) or not 1 <= int(text) <= MAX_RANKS:
        raise UsageError(
            f"-n {_seen(text)}: give a whole number of ranks per node, at least 1, or gpu, cpu or auto",
            hint="echelon run -n 2 …",
        )
    return int(text)


def _image(values: dict[str, str]) -> str:
    if values.get("container") == "":
        raise UsageError("--container '': give the name of an image", hint="--container image.sif")
    return values.get("container", "")


def _nodes(text: str) -> tuple[int, int]:
    """Read N, or torchrun's elastic MIN:MAX."""
    match = re.fullmatch(r"([0-9]{1,12})(?::([0-9]{1,12}))?", text)
    least, most = (int(match.group(1)), int(match.group(2) or match.group(1))) if match else (0, 0)
    if not 1 <= least <= most <= MAX_RANKS:
        raise UsageError(
            f"--nnodes {_seen(text)}: give a number of at least 1, or MIN:MAX", hint="echelon run --nnodes 2 …"
        )
    return least, most


def _seen(text: str) -> str:
    """Return a value as a message shows it: an empty value shows as ''."""
    return text or "''"


def _one_of(name: str, text: str, choices: tuple[str, ...]) -> str:
    if text not in choices:
        raise UsageError(
            f"{name} {_seen(text)}: the choices are {', '.join(choices)}", hint=f"echelon run {name} {choices[0]} …"
        )
    return text


def _visible(values: dict[str, str]) -> str:
    return "own" if "virtual_local_rank" in values else values.get("visible", "all")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(
            f"--env {_seen(text)}: give a name, = and a value",
            hint=f"echelon run --env {name or 'NAME'}=VALUE …",
        )
    return name, value


def _debug(values: dict[str, str]) -> int:
    return _whole("--debug", values["debug"], least=0) if "debug" in values else -1


def _show(values: dict[str, str]) -> frozenset[int] | None:
    if "debug" in values:
        if "show" in values:
            raise UsageError("--debug shows only its rank, but --show asks for others", hint="remove --show")
        return frozenset({_debug(values)})
    text = values.get("show", "all" if values.get("tee", "0") not in ("0", "") else "0")
    if text == "all":
        return None
    if text == "none":
        return frozenset()
    shown: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,12})(?:-([0-9]{1,12}))?", part)
        low, high = (int(match.group(1)), int(match.group(2) or match.group(1))) if match else (1, 0)
        if not low <= high <= MAX_RANKS:
            raise UsageError(f"--show {_seen(text)}: give ranks, all or none", hint="echelon run --show 0,4-7 …")
        shown.update(range(low, high + 1))
    return frozenset(shown)


def _run_directory(values: dict[str, str]) -> str:
    if values.get("run_dir") == "":
        raise UsageError("--run-dir '': give the name of a directory", hint="echelon run --run-dir first …")
    return os.path.normpath(os.path.join(os.getcwd(), values["run_dir"])) if "run_dir" in values else ""


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
        raise UsageError(f"{name} {_seen(text)}: give a port, a whole number from 1 to 65535", hint=f"{name} {hint}")
    return int(port)


def print_plan(plan: Plan, *, as_json: bool) -> None:
    """Print on standard output what would run."""
    from echelon.launch.agents import starts
    from echelon.launch.run_directory import plan_fields

    archive = f"{plan.run_directory}/node.pyz"
    if as_json:
        print(
            json.dumps(
                {"format": 1, **plan_fields(plan), "agents": list(starts(plan, archive, os.environ)[0].words)}, indent=1
            )
        )
        return
    import shlex

    width = max(len(reason.what) for reason in plan.reasons)
    for reason in plan.reasons:
        print(f"{reason.what:<{width}}  {reason.value}  ({reason.why})")
    for label, text in (
        ("on", ", ".join(plan.nodes) or "the nodes that meet at " + plan.rendezvous),
        ("imports", ", ".join(plan.preload) or "nothing ahead"),
        ("run dir", plan.run_directory),
        *(("agents", shlex.join(start.words)) for start in starts(plan, archive, os.environ)),
        ("ranks", shlex.join(plan.argv)),
    ):
        print(f"{label:<{width}}  {text}")
