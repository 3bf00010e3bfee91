"""Fit a launcher's line to the nodes: the ranks of each node, and the program that starts ranks of MPI."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Sequence
from dataclasses import replace

from echelon.dialects.merge import refuse_nodes_of_horovodrun, started
from echelon.errors import EchelonError, UsageError
from echelon.host import Host
from echelon.scheduler.protocol import Allocation
from echelon.scheduler.slurm import step
from echelon.spec import ALL_NODES, ONE_PER_DEVICE, Job, Launcher
from echelon.units import counted

ANSWER_SECONDS = 20.0
FAMILIES = (("Open MPI", "pmix"), ("OpenRTE", "pmix"), ("HYDRA", "pmi2"), ("Intel(R) MPI", "pmi2"), ("mvapich", "pmi2"))
"""Names in the output of `mpirun --version`, each with the protocol that srun needs for such a library."""


def with_node_layout(job: Job, allocation: Allocation | None, host: Host) -> Job:
    """Return the job with the ranks of each node; raise UsageError if line and nodes do not fit."""
    launcher = job.launcher
    if launcher is None:  # no other launcher's line
        return job
    if launcher.name.startswith("srun") and allocation is None:
        raise UsageError(
            "srun outside an allocation asks for one, but echelon run would not wait in it",
            hint=f"salloc --nodes=2 …, then: echelon run {started(job.command)}   or: echelon submit …",
        )
    _refuse_strange_hosts(launcher, allocation)
    job = _divided(job, launcher, _num_nodes(job, allocation))
    if launcher.name == "srun" and job.ranks_per_node == ONE_PER_DEVICE and allocation is not None:
        job = replace(job, ranks_per_node=allocation.tasks_per_node)  # srun's default without numbers
    return replace(job, launcher=_with_mpi(launcher, job, allocation, host)) if launcher.mpi else job


def _num_nodes(job: Job, allocation: Allocation | None) -> int:
    if job.hosts:
        return len(job.hosts)
    if allocation is None:
        return job.num_nodes if job.num_nodes != ALL_NODES and job.rendezvous else 1
    nodes = len(allocation.step_nodes if allocation.is_task else allocation.nodes)
    return nodes if job.num_nodes == ALL_NODES else min(job.num_nodes, nodes)


def _divided(job: Job, launcher: Launcher, num_nodes: int) -> Job:
    total = launcher.num_ranks
    if not total:
        return job
    said = f"{launcher.name} {launcher.num_ranks_text}"
    nodes = counted(num_nodes, "node")
    if job.ranks_per_node != ONE_PER_DEVICE and job.ranks_per_node * num_nodes != total:
        raise UsageError(
            f"two numbers of ranks disagree: {job.ranks_per_node} per node on {nodes} make "
            f"{job.ranks_per_node * num_nodes}, but {said} asks for {total} in all",
            hint=f"echelon run -n {job.ranks_per_node} {started(job.command)}   or remove -n",
        )
    if total % num_nodes:
        divisor = max(count for count in range(1, num_nodes + 1) if total % count == 0)
        raise UsageError(
            f"{said}: {nodes} cannot share {total} ranks evenly",
            hint=f"echelon run --nnodes {divisor} -- …   or ask for {max(1, total // num_nodes) * num_nodes} ranks",
        )
    return replace(job, ranks_per_node=total // num_nodes)


def _refuse_strange_hosts(launcher: Launcher, allocation: Allocation | None) -> None:
    hosts = launcher.hosts
    if allocation is None:
        names = (socket.gethostname(), socket.gethostname().partition(".")[0])
        strange = [host for host in hosts if host not in names]
        if strange:
            raise UsageError(
                f"{launcher.name} names {', '.join(hosts[:4])}{' …' if len(hosts) > 4 else ''}, which it would "
                "reach by ssh; but this is a single machine outside any Slurm allocation",
                hint=f"salloc --nodes={len(hosts)} …, then: echelon run -- {launcher.name} …   without hosts; "
                "or on each machine: echelon run --nnodes=N --node-rank=K --master-addr=HOST --master-port=PORT …",
            )
    elif set(hosts) - set(allocation.nodes[: len(hosts)]):
        raise UsageError(
            f"{launcher.name} names {', '.join(hosts)}, but job {allocation.job_id} has {', '.join(allocation.nodes)}",
            hint="remove the hosts: echelon takes the nodes of the allocation in their order",
        )


def _with_mpi(launcher: Launcher, job: Job, allocation: Allocation | None, host: Host) -> Launcher:
    """Choose the program that starts the ranks of MPI: Slurm if it speaks the library's protocol."""
    if allocation is not None and allocation.is_task:
        raise UsageError(
            f"this is one of {allocation.num_tasks} Slurm tasks, and each of them would start {launcher.name}",
            hint=f"start echelon once, without srun: echelon run -- {launcher.name} …",
        )
    if launcher.mpi == "horovodrun":
        _refuse_missing(launcher.words[0], "horovod", ())
        refuse_nodes_of_horovodrun(job, _num_nodes(job, allocation))
        here = socket.gethostname().partition(".")[0]
        if allocation is not None and here not in [node.partition(".")[0] for node in allocation.nodes]:
            raise UsageError(
                f"horovodrun starts its ranks where you call it, but {here} is not the node of job "
                f"{allocation.job_id} ({allocation.nodes[0]})",
                hint="put the line into a batch script; or srun --nodes=1 --ntasks=1 --pty bash, then the same line",
            )
        return launcher
    offered = step.offered(host) if allocation is not None else ()
    if launcher.mpi != "mpirun":
        if launcher.mpi not in offered:
            raise UsageError(
                f"srun --mpi={launcher.mpi}: this Slurm has {', '.join(offered) or 'no way to start MPI'}",
                hint=f"--mpi={next((name for name in offered if name != 'none'), 'none')}",
            )
        return launcher
    wanted = _protocol(launcher, host)
    if wanted in offered and step.loads(host, wanted):
        return replace(launcher, mpi=wanted, words=())
    _refuse_missing(launcher.words[0], "mpi", offered)
    if wanted == "pmix" and job.bind != "off" and not any("bind" in word for word in launcher.words):
        # Open MPI binds its processes, our agents, to few cores, and ranks cannot be bound outside of those
        return replace(launcher, words=(launcher.words[0], "--bind-to", "none", *launcher.words[1:]))
    return launcher


def _protocol(launcher: Launcher, host: Host) -> str:
    """Return the protocol of the MPI library whose mpirun the line names; empty if unknown."""
    try:
        said = host.ask([launcher.words[0], "--version"], timeout_seconds=ANSWER_SECONDS)
    except EchelonError:
        return ""
    text = (said.stdout + said.stderr).casefold()
    return next((protocol for name, protocol in FAMILIES if name.casefold() in text), "")


def _refuse_missing(program: str, extra: str, offered: Sequence[str]) -> None:
    if shutil.which(program) is None:
        others = next((name for name in offered if name.startswith("pmi")), "")
        direct = f"   or, for the MPI that the program was built with: srun --mpi={others} …" if others else ""
        raise UsageError(
            f"there is no program {program!r} on PATH",
            hint=f"module load …, or: pip install 'echelon[{extra}]'{direct}",
        )
