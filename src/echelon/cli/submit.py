"""`echelon submit`: plan a job, write its batch script, hand it to Slurm."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from echelon.cli import chain_options
from echelon.cli import options as run_options
from echelon.cli.help import Help
from echelon.cli.launcher import with_launcher
from echelon.cli.mistakes import refuse_unread, say_worst
from echelon.cli.options import Option, Scanned, scan
from echelon.cli.resources import RESOURCES, projects, read_machine, read_request, successor, today
from echelon.cli.run import read_job
from echelon.cli.talk import say, say_remarks
from echelon.environment import digits
from echelon.errors import UsageError
from echelon.host import Host
from echelon.units import counted

if TYPE_CHECKING:
    from echelon.dialects.translate import LauncherLine
    from echelon.jobs.submit import BatchScript, Wish
    from echelon.machines.machine import Machine
    from echelon.spec import Booking, Job

LAYOUTS = ("torchrun", "tasks")
SUBMITTING: tuple[Option, ...] = (
    Option(names=("-J", "--job-name"), value="NAME", help="default: the script's"),
    Option(names=("--after",), value="JOB", help="start when this job has ended successfully"),
    Option(names=("--after-any",), value="JOB", help="start when this job has ended, also if it failed"),
    *chain_options.OPTIONS,
    Option(names=("--min-nodes",), value="N", help="continue with so few nodes when nodes fail (default: end)"),
    Option(names=("--pool",), help="start a pool on the nodes first, for more runs in this job: see echelon pool"),
    Option(names=("--wait",), help="wait for the end; exit with the job's exit code"),
    Option(names=("--follow",), help="show rank 0's output while it is written, and wait"),
    Option(names=("--learn",), help="if echelon does not know this cluster, learn it from its Slurm first"),
    Option(names=("--test",), help="ask Slurm when the job would start, and submit nothing"),
    Option(names=("--plain",), help="write a script that runs without echelon, as the guides show"),
    Option(names=("--layout",), value="HOW", choices=LAYOUTS,
           help="for a plain script: torchrun (one a node) or tasks (one a rank)"),
    Option(names=("--dry-run",), help="print the script, and do nothing else"),
    Option(names=("--json",), help="print the job's number and run directory as JSON"),
    Option(names=("-h", "--help"), help="show this"),
)  # fmt: skip
# Options that would contradict the resources, or that belong to the start inside of the job.
_NOT_FROM_RUN = frozenset(
    {"nnodes", "nproc_per_node", "share_devices", "dry_run", "explain_hooks", "json", "help", "global_batch",
     "run_dir", "node_rank", "master_addr", "master_port", "rdzv_endpoint", "rdzv_id", "tee", "virtual_local_rank",
     "time", "cpus_per_task", "debug"}
)  # fmt: skip
# Options of `echelon run` that a plain script can express.
_IN_PLAIN = frozenset({"module", "no_python", "container", "container_bind", "global_batch"})
_OFF_IN_PLAIN = ("scale", "off")  # accepted only for a script that is not scaled
FROM_RUN = tuple(option for option in run_options.OPTIONS if not option.no_meaning and option.key not in _NOT_FROM_RUN)
OPTIONS: tuple[Option, ...] = (*RESOURCES, *SUBMITTING, *FROM_RUN)
_OF_BATCH = tuple(option for option in RESOURCES if option.key == "global_batch")
HELP = Help(
    command="submit",
    usage=(
        "[options] SCRIPT [args…]",
        "[options] -m MODULE [args…]",
        "[options] -- PROGRAM [args…]",
        "[options] -- echelon sweep …",
    ),
    about="Plan a job on this machine, write its batch script, and hand it to Slurm.",
    operands=(Option(names=("SCRIPT",), takes="script"),),
    groups=(("resources of the job", RESOURCES), ("how to submit it", SUBMITTING), ("as in echelon run", FROM_RUN)),
    example="echelon submit --gpus 16 --time 12h --account project_465000000 train.py --epochs 3",
)


def main(arguments: list[str]) -> int:
    scanned = HELP.scan(arguments)
    values = scanned.last
    if not scanned.rest:
        raise UsageError("the command line has no script", hint="echelon submit --time 2h train.py")
    if "time" not in values:
        raise UsageError("--time is required: Slurm ends a job at its time limit", hint="--time 2h")

    host = Host()
    wish, script = _prepared(scanned, values, host, made_by=shlex.join(["echelon", "submit", *arguments]))
    say_worst(wish.reading)
    say_remarks(script.booking)
    if "dry_run" in values:
        print(script.text, end="")
        if "plain" not in values:
            say(
                "note: echelon submit makes the folder of the job's output: mkdir -p "
                f"{shlex.quote(script.run_directory)}"
            )
        return 0
    return _hand_over(script, values, host)


def refuse(arguments: list[str], host: Host) -> None:
    """Raise UsageError where `echelon submit` would, or the run in its job, for its way to scale; write nothing."""
    from echelon.launch.prepare import decide

    scanned = scan(arguments, OPTIONS, command="submit")
    values = scanned.last
    wish, _ = _prepared(scanned, values, host, made_by="")
    decide(wish.job, wish.reading)


def _prepared(scanned: Scanned, values: Mapping[str, str], host: Host, *, made_by: str) -> tuple[Wish, BatchScript]:
    """Return the wish and its script; raise UsageError for a job that cannot run as asked."""
    from echelon.jobs import submit

    _refuse_contradictions(values)
    wish = _wish(scanned, values, host, made_by=made_by)
    script = submit.prepare(wish, host)
    _refuse_booking(script.booking, wish)
    if wish.verb == "sweep":
        from echelon.cli import sweep_job

        sweep_job.refuse_without_room(list(wish.run_words), script.booking)
    refuse_unread(wish.reading)
    return wish, script


def _hand_over(script: BatchScript, values: Mapping[str, str], host: Host) -> int:
    """Submit the script, and wait for its end if asked; return the exit code."""
    from echelon.jobs import submit
    from echelon.scheduler.slurm import queue

    if "after" in values:
        queue.refuse_bad_predecessor(host, values["after"])
    for name in submit.overruling(host):
        say(f"note: {name} would override the script, so echelon does not pass it on")
    submit.write(script)
    if "test" in values:
        print(submit.ask_when(script, host))
        return 0
    number = submit.hand_over(script, host)
    others = submit.queue_successors(script, host)
    if "json" in values:
        chain = {"chain": script.chain.name, "waiting": others} if script.chain is not None else {}
        print(json.dumps({"format": 1, "job_id": number, "run_directory": script.run_directory, **chain}))
    else:
        say(f"job {number}: {script.headline} · {script.run_directory}")
        if script.chain is not None:
            say(chain_options.described(script))
    if "wait" not in values and "follow" not in values:
        return 0
    from echelon.jobs.following import follow

    return follow(number, script.run_directory, host, say, shows=sys.stdout.buffer if "follow" in values else None)


def _wish(scanned: Scanned, values: Mapping[str, str], host: Host, *, made_by: str) -> Wish:
    """Return the wish that the options describe; a launcher's line after `--` gives the number of ranks."""
    from echelon.jobs.submit import Wish
    from echelon.script.reading import of_job

    is_plain, swept = "plain" in values, _swept(scanned)
    if swept is None:
        for_run, line = with_launcher(_for_run(scanned))
        job = read_job(for_run)
    else:
        from echelon.cli import sweep_job

        own_start = [row for row in OPTIONS if row.key in ("min_nodes", "plain")]
        job, line = sweep_job.job_of(swept, values, [*FROM_RUN, *_OF_BATCH, *own_start], host), None
    if line is not None:
        from echelon.dialects.merge import launcher

        job = replace(job, launcher=launcher(line))
        values = {**values, **_sizes(values, job, line)}
        if is_plain:
            _refuse_what_only_a_launcher_sets(line)
    machine, reading = _machine(values, host), of_job(job)
    return Wish(
        job=job,
        reading=reading,
        request=read_request(values, host.environ),
        machine=machine,
        successor=successor(machine, host),
        verb="run" if swept is None else "sweep",
        run_words=_run_words(scanned) if swept is None else tuple(swept),
        folder_option="--run-dir" if swept is None else sweep_job.folder_option(swept),
        made_by=made_by,
        job_name=values.get("job_name", ""),
        after=values.get("after", ""),
        after_any=values.get("after_any", ""),
        min_nodes=_min_nodes(values, line) or job.min_nodes,  # a launcher's line may give MIN:MAX
        layout=values.get("layout", "torchrun") if is_plain else "",
        today=today(),
        is_dry=is_plain and "dry_run" in values,
        chain=chain_options.read(values, job, reading, saves=swept is not None),
        starts_pool="pool" in values,
    )


def _swept(scanned: Scanned) -> list[str] | None:
    """Return the words after `echelon sweep`; None: the job runs a script or a program."""
    is_sweep = [os.path.basename(word) for word in scanned.rest[:2]] == ["echelon", "sweep"]
    return list(scanned.rest[2:]) if is_sweep and scanned.is_program else None


def _machine(values: Mapping[str, str], host: Host) -> Machine:
    """Return the machine to submit on; learn an unknown machine if the user agrees."""
    try:
        return read_machine(values, host)[0]
    except UsageError as error:
        if "machine" in values or shutil.which("scontrol") is None:
            raise
        if "learn" not in values and not _wants_to_learn():
            raise UsageError(error.message, hint="echelon submit --learn …   asks this cluster's Slurm first") from None
    from echelon.cli.machines import learn_here

    learn_here(host)
    return read_machine(values, host)[0]


def _wants_to_learn() -> bool:
    """Ask a person; without a terminal the answer is no."""
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr is not None and sys.stderr.isatty()):
        return False
    sys.stderr.write("echelon: echelon does not know this cluster. Learn it from its Slurm now, and continue? [Y/n] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    return answer.strip().lower() in ("", "y", "yes") and bool(answer)


def _refuse_booking(booking: Booking, wish: Wish) -> None:
    """Raise UsageError for mistakes that only the booking shows."""
    from echelon.dialects.merge import refuse_nodes_of_horovodrun
    from echelon.plan.book import refuse_missing_account

    if wish.min_nodes > booking.num_nodes:
        raise UsageError(
            f"--min-nodes {wish.min_nodes}: the job has {counted(booking.num_nodes, 'node')}",
            hint=f"--min-nodes {max(1, booking.num_nodes - 1)}, or more nodes",
        )
    least, num_spares = max(1, wish.min_nodes), wish.job.num_spares
    if num_spares > booking.num_nodes - least:
        raise UsageError(
            f"--spares {num_spares}: the job has {counted(booking.num_nodes, 'node')}, and at least {least} must train",
            hint=f"--nodes {least + num_spares} --spares {num_spares}",
        )
    refuse_nodes_of_horovodrun(wish.job, booking.num_nodes)
    refuse_missing_account(booking, wish.machine, projects())


def _min_nodes(values: Mapping[str, str], line: LauncherLine | None) -> int:
    """Return the least number of nodes with which the job may continue; 0: all nodes are needed."""
    text = values.get("min_nodes", "0")
    if "min_nodes" in values and not digits.whole(text):
        raise UsageError(f"--min-nodes {text or repr('')}: give a number of at least 1", hint="--min-nodes 1")
    if "min_nodes" in values and "plain" in values:
        raise UsageError("a plain script cannot continue when a node fails", hint="submit without --plain")
    if "min_nodes" in values and line is not None:
        is_elastic = line.launcher == "torchrun"
        raise UsageError(
            f"--min-nodes is for runs that echelon starts, but {line.launcher} counts its nodes itself",
            hint=f"-- torchrun --nnodes={text}:MAX …" if is_elastic else "start the script without its launcher",
        )
    return int(text)


def _for_run(scanned: Scanned) -> Scanned:
    """Return the options that `echelon run` reads inside of the job."""
    keys = {option.key for option in FROM_RUN} | {"global_batch"}
    values = {key: found for key, found in scanned.values.items() if key in keys}
    return Scanned(values=values, rest=scanned.rest, is_program=scanned.is_program)


def _sizes(values: Mapping[str, str], job: Job, line: LauncherLine) -> dict[str, str]:
    """Return --gpus and --nodes, merged with the launcher's numbers; an invalid number is refused later."""
    from echelon.dialects import merge

    said = {key: digits.whole(values.get(key, "")) for key in ("gpus", "nodes")}
    if any(key in values and not number for key, number in said.items()):
        return {}
    num_devices, num_nodes = merge.sizes(job, line, num_devices=said["gpus"], num_nodes=said["nodes"])
    return {key: str(number) for key, number in (("gpus", num_devices), ("nodes", num_nodes)) if number}


def _refuse_what_only_a_launcher_sets(line: LauncherLine) -> None:
    """Refuse a launcher's settings that a plain script would lose: it starts torchrun, or one task for each rank."""
    lost = [
        *(["the program that starts the ranks of MPI"] if line.mpi is not None else []),
        *([f"{line.rank_argument}K for each rank"] if line.rank_argument else []),
        *(given.text for given in line.options if given.key in ("max_restarts", "visible")),
        *(name for name, _ in line.environ),
        *(["the devices that it chooses"] if line.devices else []),
    ]
    if lost:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        raise UsageError(
            f"a plain script cannot do everything that {line.launcher} does: {', '.join(lost[:3])}{more}",
            hint="submit without --plain",
        )


def _run_words(scanned: Scanned) -> tuple[str, ...]:
    """Return the options and the script as words after `echelon run` in the job."""
    words = scanned.words([*FROM_RUN, *_OF_BATCH])
    module = ["--module"] if "module" in scanned.values else []
    return (*words, *module, *(["--"] if scanned.is_program else []), *scanned.rest)


def _refuse_contradictions(values: Mapping[str, str]) -> None:
    if "layout" in values and "plain" not in values:
        raise UsageError("--layout needs --plain: it is the layout of a plain script", hint="--plain --layout tasks")
    if values.get("layout", "torchrun") not in LAYOUTS:
        raise UsageError(f"--layout {values['layout']}: the choices are {', '.join(LAYOUTS)}", hint="--layout tasks")
    asked = {key for key, value in values.items() if key not in _IN_PLAIN and (key, value) != _OFF_IN_PLAIN}
    lost = [option.names[-1] for option in FROM_RUN if option.key in asked] + ["--pool"] * ("pool" in values)
    if "plain" in values and lost:
        raise UsageError(
            f"a plain script cannot use {' and '.join(lost)}",
            hint=f"remove {'it' if len(lost) == 1 else 'them'}, or submit without --plain",
        )
    if "json" in values and ("test" in values or "dry_run" in values):
        raise UsageError("--json prints a job's number, but --test and --dry-run submit no job", hint="remove --json")
    for key, option in (("after", "--after"), ("after_any", "--after-any")):
        if key in values and not digits.is_number(values[key]):
            raise UsageError(f"{option} {values[key] or repr('')}: give the number of a job", hint=f"{option} 123456")
