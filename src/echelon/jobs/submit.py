"""Submit a job: book, write the run directory and its batch script, hand it to Slurm, follow it."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from dataclasses import asdict, dataclass
from datetime import date

from echelon.environment import digits
from echelon.errors import EchelonError, UsageError
from echelon.host import Finished, Host, own_command
from echelon.jobs import settings
from echelon.jobs.settings import Chain
from echelon.launch.prepare import decide, refuse_bad_command, refuse_traps
from echelon.launch.run_directory import new_path
from echelon.machines.machine import Machine
from echelon.node import order, private
from echelon.plan import containers
from echelon.plan.book import book
from echelon.plan.candidates import named_partitions
from echelon.plan.shape import batch_variables
from echelon.scheduler.slurm import batch, plain
from echelon.script.reading import ScriptReading
from echelon.spec import RUNS, Booking, Container, Job, Request
from echelon.units import cost, counted, slurm_time

SUBMIT_SECONDS = 60.0
OUTPUT = "slurm.out"
PLAIN_OUTPUT = "%x-%j.out"  # for a script that is only read, and perhaps submitted by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainWish:
    """What a person asks for with `--chain`."""

    num_jobs: int
    """0: until the training ends."""
    max_seconds: float
    resumes_anyway: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a person asks for in `echelon submit`."""

    job: Job
    reading: ScriptReading | None
    request: Request
    machine: Machine
    successor: Machine | None
    """The machine that replaced a retired machine, if known."""
    run_words: tuple[str, ...]
    """The words after `echelon run`, or after `echelon sweep`, in the job."""
    verb: str = "run"
    """"run" or "sweep"."""
    folder_option: str = "--run-dir"
    """How the command is told its run directory; empty: it has a folder of its own."""
    made_by: str
    job_name: str
    after: str
    min_nodes: int
    """The least number of nodes with which the job continues; 0: the loss of any node ends it."""
    layout: str
    """The layout of a plain script; empty: the job runs echelon."""
    today: date
    is_dry: bool
    """Whether the script is only shown: then a retired machine is accepted."""
    chain: ChainWish | None = None
    """None: a single job."""
    starts_pool: bool = False
    """Whether the job starts a pool on its nodes before the run."""
    after_any: str = ""
    """The job that must have ended first, in whatever way; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScript:
    """A batch script and its run directory."""

    booking: Booking
    run_directory: str
    text: str
    chain: Chain | None = None

    @property
    def path(self) -> str:
        return os.path.join(self.run_directory, "job.sh")

    @property
    def headline(self) -> str:
        booking = self.booking
        nodes, ranks = counted(booking.num_nodes, "node"), counted(booking.world_size, "rank")
        bill = f"{cost(booking.billed or 0, booking.billed_unit)} at most ({booking.billed_because})"
        bill = f" · {bill}" if booking.billed is not None else ""
        return f"{ranks} on {nodes} of {booking.partition} · {slurm_time(booking.minutes)}{bill}"


def prepare(wish: Wish, host: Host) -> BatchScript:
    """Return the script; raise UsageError for a job that cannot run as asked. Nothing is written."""
    refuse_bad_command(wish.job, wish.reading)
    booking = book(wish.request, wish.machine, today=wish.today, even_if_retired=wish.is_dry, successor=wish.successor)
    if wish.verb == "run":  # the runs of a sweep share the job's devices
        refuse_traps(wish.job, wish.reading, booking, host.environ)
    label = wish.job_name or os.path.basename(wish.job.command.target.rstrip("/")).removesuffix(".py")
    run_id = os.urandom(8).hex()
    run_directory = new_path(os.path.join(os.getcwd(), RUNS), label, time.time(), run_id)
    name = settings.name_of(label, run_id)
    chain = _chain(wish, wish.chain, booking, run_directory, name) if wish.chain is not None else None
    container = _container(wish, booking, run_directory)
    heading = batch.Heading(
        job_name=chain.name if chain else label,
        reserve_seconds=chain.reserve_seconds if chain else 0,
        made_by=wish.made_by,
        folder=os.getcwd(),
        output=PLAIN_OUTPUT if wish.layout and wish.is_dry else os.path.join(run_directory, OUTPUT).replace("%", "%%"),
        after=wish.after,
        after_any=wish.after_any,
        outlives_nodes=0 < wish.min_nodes < booking.num_nodes or wish.job.num_spares > 0,
        starter=plain.STARTERS[wish.layout] if wish.layout else batch.STARTER,
    )
    if wish.layout:
        text = _plain(wish, booking, heading, container, host)
    else:
        text = batch.render(booking, heading, _supervised(wish, booking, run_directory, container))
    return BatchScript(booking=booking, run_directory=run_directory, text=text, chain=chain)


def _chain(wish: Wish, asked: ChainWish, booking: Booking, run_directory: str, name: str) -> Chain:
    job_seconds = booking.minutes * 60.0
    if asked.max_seconds < job_seconds:
        raise UsageError(
            f"--max-hours {asked.max_seconds / 3600:g} is less than the time limit of one job, "
            f"{slurm_time(booking.minutes)}",
            hint=f"--max-hours {job_seconds * max(2, asked.num_jobs) / 3600:g}",
        )
    return Chain(
        path=run_directory,
        name=name,
        num_jobs=asked.num_jobs,
        max_seconds=asked.max_seconds,
        job_seconds=job_seconds,
        reserve_seconds=settings.reserve(job_seconds),
        resumes_anyway=asked.resumes_anyway,
        made_by=wish.made_by,
    )


def _plain(wish: Wish, booking: Booking, heading: batch.Heading, container: Container | None, host: Host) -> str:
    """Return a script that needs no echelon at run time."""
    command = _plain_command(wish, booking)
    prefix = container.prefix if container else ()
    modules = container.modules if container else _preamble(host)
    environ = batch_variables(wish.request.global_batch, booking.batch_per_rank)
    if booking.world_size == 1:
        return plain.alone(booking, heading, command, prefix=prefix, modules=modules, environ=environ)
    body = plain.body(booking, wish.layout, command, prefix=prefix, modules=modules, environ=environ)
    return batch.render(booking, heading, body, tasks_per_node=plain.tasks_per_node(booking, wish.layout))


def _supervised(wish: Wish, booking: Booking, run_directory: str, container: Container | None) -> list[str]:
    environ, sizes = [("ECHELON_MACHINE", wish.machine.name)], [f"--nproc-per-node={booking.ranks_per_node}"]
    if wish.verb == "sweep":
        sizes = []
        environ += [(order.CHAIN, run_directory)] * (wish.chain is not None)
    if 0 < wish.min_nodes < booking.num_nodes and wish.job.launcher is None:  # a launcher's line states its own sizes
        sizes.append(f"--nnodes={wish.min_nodes}:{booking.num_nodes - wish.job.num_spares}")
    return batch.supervised(
        [*own_command.command(), wish.verb, *sizes, *wish.run_words],
        run_directory,
        environ,
        container.modules if container else (),
        verb=wish.verb,
        folder_option=wish.folder_option,
        is_chain=wish.chain is not None,
        is_saved=wish.job.checkpoints is not None and not wish.job.checkpoints.resumes,
        starts_pool=wish.starts_pool,
    )


def _container(wish: Wish, booking: Booking, run_directory: str) -> Container | None:
    if not wish.job.container:
        return None

    partition = next(row for row in named_partitions(wish.request, wish.machine) if row.name == booking.partition)
    folders = [os.getcwd(), *([] if wish.layout else [run_directory]), *containers.script_folders(wish.job)]
    return containers.contain(
        wish.job.container,
        wish.machine,
        folders=folders,
        binds=wish.job.container_binds,
        vendor=wish.machine.node_type(partition).vendor,
        runtimes=(),  # the machine's file says what compute nodes have
    )


def _plain_command(wish: Wish, booking: Booking) -> list[str]:
    command = wish.job.command
    if command.kind != "program" and booking.world_size > 1:
        _refuse_copies(wish, booking.world_size)
    if command.kind == "program":
        raise UsageError(
            "--plain starts Python, but the program after -- may be anything",
            hint="echelon submit --plain … SCRIPT   or without --plain: echelon submit … -- PROGRAM",
        )
    words = [word.replace("{batch_per_rank}", str(booking.batch_per_rank)) if booking.batch_per_rank else word
             for word in command.arguments]  # fmt: skip
    return [*(["-m"] if command.kind == "module" else []), command.target, *words]


def _refuse_copies(wish: Wish, num_ranks: int) -> None:
    """Refuse a script for one device: every rank would train a copy of its own."""
    if decide(wish.job, wish.reading).how == "off":
        return
    raise UsageError(
        f"{wish.job.command.target} trains on one device: nothing in it distributes the work, so without echelon "
        f"each of {num_ranks} ranks would do the same training",
        hint="submit without --plain, which scales it, or --plain --scale off to start that many copies",
    )


def _preamble(host: Host) -> tuple[str, ...]:
    """Return the lines that set up this shell's Python in the job: its modules and its virtual environment."""
    lines = []
    loaded = [name for name in host.environ.get("LOADEDMODULES", "").split(":") if name]
    if loaded:
        lines.append(f"module load {shlex.join(loaded)}")
    if sys.prefix != sys.base_prefix:
        lines.append(f"source {shlex.quote(os.path.join(sys.prefix, 'bin', 'activate'))}")
    return tuple(lines)


def write(script: BatchScript) -> None:
    """Create the run directory with the script and the booking."""
    try:
        os.makedirs(script.run_directory, mode=0o700)
        with open(script.path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(script.text)
        os.chmod(script.path, 0o700)
        booking = json.dumps({"format": 1, **asdict(script.booking)}, indent=1)
        private.write(os.path.join(script.run_directory, "booking.json"), booking.encode())
        if script.chain is not None:
            settings.write(script.chain)
    except OSError as error:
        raise UsageError(
            f"echelon cannot write the run directory {script.run_directory}: {error.strerror}",
            hint="submit from a folder on a disk that the compute nodes also see",
        ) from None


def hand_over(script: BatchScript, host: Host) -> str:
    """Submit the script and return the job's number; if Slurm refuses, raise UsageError with its own words."""
    done = _submit(script, host, is_test=False)
    number = done.stdout.strip().partition(";")[0]
    if done.exit_code != 0 or not digits.is_number(number):
        raise _refused(script, done.stderr or done.stdout)
    return number


def queue_successors(script: BatchScript, host: Host) -> tuple[str, ...]:
    """Queue the further jobs of a chain; return their numbers. Those that Slurm refuses are queued by the jobs."""
    chain = script.chain
    numbers: list[str] = []
    while chain is not None and len(numbers) < chain.num_at_submission - 1:
        try:
            numbers.append(batch.queue(host, chain.script, chain.reserve_seconds))
        except EchelonError:
            break  # a limit of jobs in the queue
    return tuple(numbers)


def ask_when(script: BatchScript, host: Host) -> str:
    """Return Slurm's answer about a script without submitting it, and remove the files."""
    try:
        done = _submit(script, host, is_test=True)
        if done.exit_code != 0:
            raise _refused(script, done.stderr)
        return batch.without_prefix(done.stderr or done.stdout)
    finally:
        for name in ("job.sh", "booking.json", *([settings.NAME] if script.chain else [])):
            os.unlink(os.path.join(script.run_directory, name))
        os.rmdir(script.run_directory)


def _submit(script: BatchScript, host: Host, *, is_test: bool) -> Finished:
    environ, _ = batch.environment(host.environ)
    command = batch.submission(script.path, is_test=is_test)
    return host.ask(command, timeout_seconds=SUBMIT_SECONDS, environ=environ)


def overruling(host: Host) -> tuple[str, ...]:
    """Return the variables of the user's shell that would override the script."""
    return batch.environment(host.environ)[1]


def _refused(script: BatchScript, said: str) -> UsageError:
    text = batch.without_prefix(said) or "Slurm gave no reason"
    return UsageError(
        f"Slurm refuses the job: {text}", hint=f"the script is {script.path}; echelon plan --why … explains its lines"
    )
