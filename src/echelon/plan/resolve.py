"""Resolve a job on this machine: a pure function of the job and its surroundings."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from echelon.errors import UsageError
from echelon.orders.checkpoint import variables as saved
from echelon.plan import containers
from echelon.plan.shape import batch_variables, refuse_uneven_shards, share_of_batch
from echelon.plan.site import KnownMachine, variables
from echelon.scheduler import members
from echelon.scheduler.protocol import Allocation, RunShape
from echelon.spec import ALL_NODES, ONE_PER_DEVICE, Container, Job, Plan, Reason
from echelon.units import counted

# Variables that echelon sets in each rank; a common value would be wrong in all ranks but one.
RANK_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
)


CONTAINER_PYTHON = "python3"  # the image's own, whatever its name is outside
BATCH_PLACE = "{batch_per_rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """All facts that a plan depends on besides the job itself."""

    python: str
    node: str
    num_devices: int
    """The devices that this process sees."""
    allocation: Allocation | None
    signals_reach_ranks: bool
    """Whether a signal to the job reaches ranks without their agents."""
    preload: tuple[str, ...]
    left_to_ranks: tuple[tuple[str, str], ...]
    """Imports that each rank performs itself, each with the reason."""
    own: tuple[str, ...]
    packages: tuple[str, ...]
    folder: str
    run_id: str
    run_directory: str
    site: KnownMachine
    cwd: str
    vendor: str
    """The name of the visible devices' vendor; empty without devices."""
    scale_why: str
    """The reason why echelon scales the script, or does not."""


def resolve(job: Job, around: Surroundings) -> Plan:
    """Decide where and how a job runs; raise UsageError if it cannot run as asked."""
    _refuse_rank_variables(job.environ)
    place = members.place(_with_spares(job, around.allocation), around.allocation, around.node)
    where, nodes = place.where, place.nodes
    ranks_per_node, devices, why_ranks = _ranks(job, around, where, len(nodes))
    num_nodes, container = len(nodes) - job.num_spares if nodes else job.num_nodes, _container(job, around)
    settings, why_settings = variables(around.site, job.environ, num_nodes)
    batch = _batch_per_rank(job, num_nodes * ranks_per_node)
    directory = _run_directory(job, around)
    _refuse_sizes(job, num_nodes, num_nodes * ranks_per_node)
    return Plan(
        run_id=around.run_id,
        name=job.name,
        python=CONTAINER_PYTHON if container is not None else around.python,
        argv=_argv(job, around, batch),
        is_python=job.command.kind != "program",
        preload=around.preload,
        own=around.own,
        packages=around.packages,
        folder=around.folder,
        where=where,
        job_id=around.allocation.job_id if around.allocation is not None else "",
        nodes=nodes,
        num_nodes=num_nodes,
        min_nodes=_min_nodes(job, num_nodes),
        num_spares=job.num_spares,
        ranks_per_node=ranks_per_node,
        devices_per_node=devices,
        cpus_per_rank=job.cpus_per_rank,
        launch="exec" if job.command.kind == "program" and job.launch == "warm" else job.launch,
        visible="own" if job.scale != "off" and num_nodes * ranks_per_node != 1 else job.visible,  # "cuda" is its own
        bind=job.bind,
        reserved_cores=around.site.kind.reserved_cores if around.site.kind is not None else (),
        documented_cores=around.site.documented_cores,
        variables=settings,
        container=container,
        scale_options=None if job.scale == "off" else job.scale_options._replace(how=job.scale),
        scale_why=around.scale_why,
        share_devices=job.share_devices,
        environ=(*batch_variables(job.global_batch, batch), *saved(job.checkpoints, directory), *job.environ),
        run_directory=directory,
        show=job.show,
        stdin_rank=_stdin_rank(job, where, num_nodes * ranks_per_node),
        timeout_seconds=job.timeout_seconds,
        hang_timeout=job.hang_timeout,
        max_restarts=job.max_restarts,
        rendezvous=_rendezvous(job, around) if where == "meet" else "",
        node_rank=_node_rank(job, around) if where == "meet" else 0,
        step=_step(job, where, len(nodes), ranks_per_node, devices),
        slurm_signals_ranks=around.signals_reach_ranks,
        launcher=job.launcher,
        reasons=(
            Reason(what="nodes", value=str(num_nodes), why=_why_nodes(job, place.why)),
            Reason(what="ranks per node", value=str(ranks_per_node or "one per device"), why=why_ranks),
            *_why_so(job, around),
            *why_settings,
            *([Reason(what="container", value=container.image, why=container.convention)] if container else []),
            *(Reason(what="not ahead", value=name, why=why) for name, why in around.left_to_ranks),
        ),
    )


def _run_directory(job: Job, around: Surroundings) -> str:
    """Return where the run writes; ranks that are scaled get echelon from there by PYTHONPATH."""
    folder = job.run_directory or around.run_directory
    if job.scale != "off" and os.pathsep in folder:
        raise UsageError(
            f"echelon cannot scale a script from the run directory {folder}: PYTHONPATH cannot hold a folder with a "
            f"{os.pathsep!r} in its name, so each rank would train by itself",
            hint="echelon run --run-dir /tmp/run …   or a working directory without a colon",
        )
    return folder


def _why_so(job: Job, around: Surroundings) -> list[Reason]:
    """Return the reasons about the start of ranks, the launcher's line and scaling."""
    launch = Reason(what="launch", value=job.launch, why=_why_launch(job))
    read = [Reason(what="read", value=job.launcher.name, why="the launcher's command line")] if job.launcher else []
    return [launch, *read] + ([Reason(what="scale", value=job.scale, why=around.scale_why)] if around.scale_why else [])


def _stdin_rank(job: Job, where: str, world_size: int) -> int:
    """Return the rank that reads the keyboard: the only rank, or the rank of --debug."""
    if job.debug < 0:
        return 0 if where == "here" and world_size == 1 else -1
    if where != "here":
        raise UsageError(
            f"--debug {job.debug} is for ranks of this machine, but the ranks run elsewhere",
            hint="run it with few ranks on one node, without an allocation, or without --debug",
        )
    if job.debug >= world_size:
        raise UsageError(
            f"--debug {job.debug}: the last of {world_size} ranks is {world_size - 1}", hint=f"--debug {world_size - 1}"
        )
    return job.debug


def _min_nodes(job: Job, num_nodes: int) -> int:
    return num_nodes if job.min_nodes == ALL_NODES else min(job.min_nodes, num_nodes)


def _step(job: Job, where: str, num_nodes: int, ranks_per_node: int, devices: int) -> tuple[str, ...]:
    """Return the command before the agents' own: the scheduler's, or the user's MPI launcher."""
    if job.launcher is not None and job.launcher.is_step:
        launcher, *options = job.launcher.words
        number = () if job.launcher.num_ranks else ("-n", str(num_nodes * ranks_per_node))
        return (launcher, *number, *options)
    shape = RunShape(
        num_nodes=num_nodes,
        ranks_per_node=ranks_per_node,
        devices_per_node=devices,
        outlives_nodes=_min_nodes(job, num_nodes) < num_nodes or job.num_spares > 0,
    )
    return members.of(where).step(job, shape)


def _argv(job: Job, around: Surroundings, batch: int) -> tuple[str, ...]:
    command = job.command
    arguments = command.arguments
    if job.global_batch:
        arguments = tuple(word.replace(BATCH_PLACE, str(batch)) for word in arguments)
    if command.kind == "program":
        return (command.target, *arguments)
    python = CONTAINER_PYTHON if job.container else around.python
    if command.kind == "module":
        return (python, "-m", command.target, *arguments)
    return (python, command.target, *arguments)


def _container(job: Job, around: Surroundings) -> Container | None:
    if not job.container:
        return None
    folders = (around.cwd, around.folder, job.run_directory or around.run_directory, *containers.script_folders(job))
    return containers.contain(
        job.container,
        around.site.machine,
        folders=folders,
        binds=job.container_binds,
        vendor=around.vendor or (around.site.kind.vendor if around.site.kind is not None else ""),
        runtimes=around.site.runtimes,
    )


def _batch_per_rank(job: Job, world_size: int) -> int:
    """Divide the global batch; refuse it if nodes decide their numbers of ranks themselves."""
    if not job.global_batch:
        return 0
    if not world_size:
        raise UsageError(
            "echelon cannot divide --global-batch before it knows the number of ranks",
            hint="give the number of ranks per node: echelon run -n 8 --global-batch …",
        )
    return share_of_batch(job.global_batch, world_size)


def _why_launch(job: Job) -> str:
    if job.command.kind == "program":
        return "not Python, so each rank is a new process"
    return {
        "warm": "imports once per node, then forks the ranks",
        "exec": "as asked: every rank imports by itself",
        "tasks": "MPI starts each rank separately" if job.mpi else "as asked: one Slurm task per rank",
    }[job.launch]


def _rendezvous(job: Job, around: Surroundings) -> str:
    if job.rendezvous:
        return job.rendezvous
    allocation = around.allocation
    if allocation is None:
        raise UsageError("the command names no rendezvous", hint="--rdzv-endpoint=HOST:PORT")
    port = 20000 + (int(allocation.job_id) * 131) % 10000  # equal in all tasks, outside the kernel's own range
    return f"{allocation.step_nodes[0]}:{port}"


def _node_rank(job: Job, around: Surroundings) -> int:
    if job.node_rank >= 0:
        return job.node_rank
    return around.allocation.task_rank if around.allocation is not None else -1


def _devices_of_job(allocation: Allocation, num_nodes: int) -> int:
    """Return the job's devices on each node in use; 0 if there are none or Slurm does not tell."""
    counts = allocation.devices[:num_nodes]
    if len(set(counts)) > 1:
        listed = ", ".join(f"{node}: {n}" for node, n in zip(allocation.nodes, counts, strict=False))
        raise UsageError(
            f"job {allocation.job_id} has different numbers of devices on its nodes ({listed}), and no Slurm "
            "step can use all of them",
            hint=f"ask for a number per node: salloc --gpus-per-node={max(counts)} …",
        )
    return counts[0] if counts else 0


def _ranks(job: Job, around: Surroundings, where: str, num_nodes: int) -> tuple[int, int, str]:
    is_remote, devices = members.of(where).is_remote, around.num_devices
    if is_remote:
        devices = _devices_of_job(around.allocation, num_nodes) if around.allocation is not None else 0
    asked = job.ranks_per_node
    if asked == ONE_PER_DEVICE:
        if devices:
            return devices, devices, "one per visible device"
        if is_remote:
            if job.launch == "tasks":
                name = f"{job.launcher.name} without a number" if job.launcher is not None else "--launch tasks"
                raise UsageError(
                    f"{name} needs the number of ranks per node, but Slurm does not tell how many devices a node has",
                    hint=f"echelon run -n 8 -- {job.launcher.name} …"
                    if job.launcher
                    else "echelon run --launch tasks -n 8 …",
                )
            return (ONE_PER_DEVICE, 0, "one per device that each node has, or one if it has none")
        return 1, 0, "this machine has no device"
    if 0 < devices < asked and not job.share_devices:
        place = "this machine" if where == "here" else "a node"
        raise UsageError(
            f"you asked for {asked} ranks per node, but {place} has {counted(devices, 'device')}",
            hint=f"echelon run -n {devices} …   or, to let ranks share devices: --share-devices",
        )
    if job.visible == "own" and 0 < devices < asked:
        raise UsageError(
            f"{asked} ranks cannot each have their own device: "
            f"{'this machine' if where == 'here' else 'a node'} has {counted(devices, 'device')}",
            hint=f"echelon run -n {devices} --visible own …   or let each rank see all: --visible all",
        )
    return asked, devices, "as asked"


def _refuse_sizes(job: Job, num_nodes: int, world_size: int) -> None:
    if job.debug < 0 and job.show and 0 < world_size <= max(job.show):
        raise UsageError(
            f"--show {max(job.show)}: "
            + (f"there are {world_size} ranks, 0 to {world_size - 1}" if world_size > 1 else "there is only rank 0"),
            hint=f"echelon run --show {world_size - 1} …   or --show all",
        )
    if world_size and _min_nodes(job, num_nodes) == num_nodes:  # else as many nodes as fit are used
        refuse_uneven_shards(job.scale_options.num_shards, world_size)


def _refuse_rank_variables(environ: tuple[tuple[str, str], ...]) -> None:
    for name, value in environ:
        if name in RANK_VARIABLES:
            raise UsageError(
                f"--env {name}={value}: {name} differs from rank to rank, so echelon sets it in each rank",
                hint=f"remove it, or choose another name than {', '.join(sorted(RANK_VARIABLES))}",
            )


def _with_spares(job: Job, allocation: Allocation | None) -> Job:
    """Return the job with all nodes that it takes; raise UsageError if there are not enough for the spares."""
    if not job.num_spares:
        return job
    if job.launcher is not None and job.launcher.is_step:
        raise UsageError(
            f"--spares {job.num_spares}: {job.launcher.name} starts its ranks on all nodes at once, so none can wait",
            hint="without --spares, or start the script without its launcher",
        )
    num_there = _num_there(job, allocation)
    least = 1 if job.num_nodes == ALL_NODES else job.min_nodes
    if num_there < least + job.num_spares:
        raise _too_few(job, allocation, num_there, least)
    if job.num_nodes == ALL_NODES:
        return job
    return replace(job, num_nodes=job.num_nodes + job.num_spares, min_nodes=job.min_nodes + job.num_spares)


def _num_there(job: Job, allocation: Allocation | None) -> int:
    """Return the number of nodes that this run can take; nodes that are started by hand are as many as asked for."""
    if allocation is not None:
        return len(allocation.step_nodes if allocation.is_task else allocation.nodes)
    return job.num_nodes + job.num_spares if job.rendezvous and job.num_nodes != ALL_NODES else 1


def _too_few(job: Job, allocation: Allocation | None, num_there: int, least: int) -> UsageError:
    where = "this is a single machine" if allocation is None else f"job {allocation.job_id} has {num_there} node"
    where += "s" if allocation is not None and num_there != 1 else ""
    fewer = f"--spares {num_there - least} …   or " if num_there > least else ""
    return UsageError(
        f"--spares {job.num_spares}: {where}, and at least {least} must train, so {max(0, num_there - least)} can wait",
        hint=f"{fewer}a larger allocation: salloc --no-kill --nodes={least + job.num_spares} …",
    )


def _why_nodes(job: Job, text: str) -> str:
    return f"{text}, {job.num_spares} of them spare" if job.num_spares else text
