"""Render a booking as a batch script: values in, text out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from echelon.environment import digits
from echelon.errors import EchelonError, UsageError
from echelon.hardware import vendors
from echelon.host import Host
from echelon.orders.checkpoint import SUBFOLDER
from echelon.spec import Booking
from echelon.units import cost, counted, slurm_size, slurm_time

COMMENT_COLUMN = 44
# sbatch prefers these to the script; echelon reads the account and writes it into the script
_OVERRULING = frozenset(
    f"SBATCH_{name}"
    for name in (
        "ACCOUNT", "PARTITION", "QOS", "TIMELIMIT", "RESERVATION", "JOB_NAME", "EXCLUSIVE", "GPUS", "GPUS_PER_NODE",
        "GPUS_PER_TASK", "GRES", "MEM_PER_NODE", "MEM_PER_CPU", "MEM_PER_GPU", "NUM_NODES", "CPUS_PER_GPU", "OUTPUT",
        "THREADS_PER_CORE", "HINT", "CONSTRAINT", "ARRAY_INX", "OPEN_MODE", "EXPORT",
    )
)  # fmt: skip
STARTER = "one agent a node, which starts the ranks"


class Directive(NamedTuple):
    """An option of sbatch, and its reason."""

    option: str
    value: str
    why: str = ""

    @property
    def text(self) -> str:
        return f"{self.option}={self.value}" if self.value else self.option


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """The header of a batch script: what it says of itself, and where it runs."""

    job_name: str
    made_by: str
    folder: str
    output: str
    after: str
    """The job that must succeed first; empty: none."""
    starter: str
    """The role of a node's single task."""
    after_any: str = ""
    """The job that must have ended first, in whatever way; empty: none."""
    outlives_nodes: bool = False
    """Whether the job continues with fewer nodes after a failure."""
    reserve_seconds: int = 0
    """The time to save before the limit, for a job that others follow; 0: no job follows."""


def directives(booking: Booking, heading: Heading, *, tasks_per_node: int) -> tuple[Directive, ...]:
    """Return the options in reading order, each with its reason."""
    why = {reason.what: reason.why for reason in booking.reasons}
    cpus = cpus_per_task(booking, tasks_per_node)
    memory_bytes = booking.memory_bytes_per_node
    rows = (
        Directive("--job-name", _word(heading.job_name)),
        booking.account and Directive("--account", booking.account, "whom to bill"),
        booking.partition_option and Directive("--partition", booking.partition_option, why["partition"]),
        booking.qos and Directive("--qos", booking.qos, why.get("QOS", "")),
        booking.constraint and Directive("--constraint", booking.constraint),
        booking.reservation and Directive("--reservation", booking.reservation),
        Directive("--nodes", str(booking.num_nodes), why["nodes"]),
        booking.exclusive and Directive("--exclusive", "", "the nodes are this job's alone"),
        _devices(booking, why["devices per node"]),
        Directive("--ntasks-per-node", str(tasks_per_node), heading.starter),
        cpus and Directive("--cpus-per-task", str(cpus), _why_cores(booking, tasks_per_node, why)),
        memory_bytes and Directive("--mem", slurm_size(memory_bytes), why["memory per node"]),
        Directive("--time", slurm_time(booking.minutes), why["time"]),
        heading.outlives_nodes and Directive("--no-kill", "", "if a node fails, the others continue"),
        *_in_chain(heading),
        Directive("--chdir", _word(heading.folder)),
        Directive("--output", _word(heading.output)),
        Directive("--open-mode", "append", "a requeued job appends to its log"),
    )
    return tuple(row for row in rows if isinstance(row, Directive))


def _in_chain(heading: Heading) -> tuple[Directive, ...]:
    """Return the options by which a job starts after others, and saves before its end."""
    jobs = {"afterok": heading.after, "afterany": heading.after_any}
    dependencies = [f"{kind}:{job}" for kind, job in jobs.items() if job]
    if not heading.reserve_seconds:
        return (Directive("--dependency", ",".join(dependencies)),) if dependencies else ()
    ordered = ",".join([*dependencies, "singleton"])
    return (
        Directive("--signal", f"B:USR1@{heading.reserve_seconds}", "time to save before the limit"),
        Directive("--dependency", ordered, "jobs of this name run one after the other"),
    )


def _devices(booking: Booking, why: str) -> Directive:
    kind = f"{booking.gres}:" if booking.device_option == "--gres" else ""
    return Directive(booking.device_option, f"{kind}{booking.devices_per_node}", why)


def cpus_per_task(booking: Booking, tasks_per_node: int) -> int:
    """Return Slurm's CPUs per task: the hardware threads of the cores of a task's ranks."""
    return booking.cores_per_rank * booking.threads_per_core * booking.ranks_per_node // tasks_per_node


def _why_cores(booking: Booking, tasks_per_node: int, why: dict[str, str]) -> str:
    ranks = booking.ranks_per_node // tasks_per_node
    factors = [str(number) for number in (ranks, booking.cores_per_rank, booking.threads_per_core) if number > 1]
    threads = f", {booking.threads_per_core} threads each" if booking.threads_per_core > 1 else ""
    product = f"{' × '.join(factors)}: " if len(factors) > 1 else ""
    return f"{product}{why['cores per rank']}{threads}"


def render(booking: Booking, heading: Heading, body: Sequence[str], *, tasks_per_node: int = 1) -> str:
    devices = booking.num_nodes * booking.ranks_per_node
    title = f"{counted(devices, 'rank')} on {counted(booking.num_nodes, 'node')} of {booking.title}"
    lines = [
        "#!/bin/bash",
        f"# {one_line(heading.job_name)}: {title}",
        f"# made by: {one_line(heading.made_by)}",
        *bill(booking),
        "#",
    ]
    for row in directives(booking, heading, tasks_per_node=tasks_per_node):
        left = f"#SBATCH {row.text}"
        lines.append(f"{left:<{COMMENT_COLUMN}} # {row.why}" if row.why else left)
    return "\n".join([*lines, "", *body, ""])


def bill(booking: Booking) -> list[str]:
    """Return the line with the job's cost; none without a published rule."""
    if booking.billed is None:
        return []
    return [f"# costs at most {cost(booking.billed, booking.billed_unit)}: {booking.billed_because}"]


def one_line(text: str) -> str:
    """Escape unprintable characters, so that a comment stays on its line."""
    return text.encode("unicode_escape").decode() if not text.isprintable() else text


def _word(text: str) -> str:
    """Quote a value for an option line: sbatch parses it like a shell word."""
    if not text.isprintable():
        raise UsageError(
            f"a batch script cannot hold {text!r}: it has a control character", hint="use letters and digits"
        )
    return shlex.quote(text)


def supervised(
    command: Sequence[str],
    run_directory: str,
    environ: Sequence[tuple[str, str]],
    modules: Sequence[str],
    *,
    verb: str = "run",
    folder_option: str = "--run-dir",
    is_chain: bool = False,
    is_saved: bool = False,
    starts_pool: bool = False,
) -> list[str]:
    """Return the body that starts a run or a sweep in the job: the command, with the run directory as an option.

    A requeued job begins a new run directory beside the first; the jobs of a chain share one, and so does a sweep. If
    the training is saved, a requeued job goes on at the newest checkpoint of the first.
    """
    position, is_sweep = command.index(verb) + 1, verb == "sweep"
    before, after = list(command[:position]), list(command[position:])
    lines = [*modules, *([""] if modules else [])]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environ]
    restarted = "" if is_chain or is_sweep else "${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}"
    lines.append(f"run_directory={shlex.quote(run_directory)}{restarted}")
    if is_chain:
        lines.append("trap '' USR1 USR2  # until echelon listens to them")
    if starts_pool:
        lines.append(f"{shlex.join([*before[:-1], 'pool', 'start'])}  # for this run, and for others in this job")
    resume = ""
    if is_saved and not (is_chain or is_sweep):
        first, saved = shlex.quote(run_directory), shlex.quote(f"{run_directory}/{SUBFOLDER}")
        lines.append("resume=()  # a requeued job goes on at the newest checkpoint of the first run")
        lines.append(f"ls {saved} 2> /dev/null | grep -q '^step-' && resume=(--resume {first})")
        resume = ' "${resume[@]}"'
    folder = f'{folder_option} "$run_directory"' if folder_option else ""
    lines.append(" ".join(filter(None, [f"exec {shlex.join(before)}", folder + resume, shlex.join(after)])))
    return lines


def submission(path: str, *, is_test: bool) -> tuple[str, ...]:
    """Return the command that submits a script; it prints the job's number."""
    return ("sbatch", "--parsable", *(("--test-only",) if is_test else ()), path)


def environment(environ: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the environment for sbatch without variables that override the script, and the names of those."""
    overruling = tuple(sorted(name for name in environ if name in _OVERRULING))
    return {name: value for name, value in environ.items() if name not in overruling}, overruling


def without_prefix(said: str) -> str:
    """Return sbatch's message without the prefix of each line."""
    return "; ".join(re.sub(r"^sbatch: (error: )?", "", line) for line in said.strip().splitlines())


ASK_SECONDS = 30.0
_OWN_SHELL = frozenset({"SLURM_CONF"})  # which cluster; all other variables describe the job that queues
_OF_DEVICES = frozenset(vendors.VARIABLES)


def warning(reserve_seconds: int) -> str:
    """Return the value of --signal: USR1 to the batch script alone, so many seconds before the time limit."""
    return f"B:USR1@{reserve_seconds}"


def queue(host: Host, path: str, reserve_seconds: int) -> str:
    """Queue a further job of a chain; return its number, or raise EchelonError with Slurm's reason.

    Jobs of one name with the dependency `singleton` run one after the other, whatever the end of each.
    """
    command = ("sbatch", "--parsable", "--dependency=singleton", f"--signal={warning(reserve_seconds)}", path)
    done = host.ask(command, timeout_seconds=ASK_SECONDS, environ=_environment(host.environ))
    number = done.stdout.strip().partition(";")[0]
    if done.exit_code != 0 or not digits.is_number(number):
        raise EchelonError(without_prefix(done.stderr or done.stdout) or "Slurm gave no reason")
    return number


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the user's environment, without what describes the job that queues another."""
    return {
        name: value
        for name, value in environ.items()
        if name in _OWN_SHELL or not (name.startswith(("SLURM_", "SBATCH_", "SRUN_")) or name in _OF_DEVICES)
    }


def waiting(host: Host, job_name: str) -> tuple[str, ...]:
    """Return the numbers of the jobs of a chain that wait; raise EchelonError if Slurm does not answer."""
    command = ("squeue", "--noheader", "--format=%i", "--states=PENDING", f"--name={job_name}")
    done = host.ask(command, timeout_seconds=ASK_SECONDS)
    if done.exit_code != 0:
        raise EchelonError(done.stderr.strip() or "squeue gave no reason")
    return tuple(done.stdout.split())


def cancel_waiting(host: Host, job_name: str) -> tuple[str, ...]:
    """Cancel the jobs of a chain that wait, and return their numbers; raise EchelonError if that fails."""
    numbers = waiting(host, job_name)
    if numbers:
        done = host.ask(("scancel", "--state=PENDING", *numbers), timeout_seconds=ASK_SECONDS)
        if done.exit_code != 0:
            raise EchelonError(done.stderr.strip() or "scancel gave no reason")
    return numbers


def cancellation(job_name: str) -> str:
    """Return the command by which a person ends a whole chain."""
    return f"scancel --name={job_name}"


def job_end(environ: Mapping[str, str]) -> float | None:
    """Return the time at which Slurm ends this job, in seconds since the epoch; None: this Slurm does not tell."""
    text = environ.get("SLURM_JOB_END_TIME", "")
    return float(text) if digits.is_number(text) else None
