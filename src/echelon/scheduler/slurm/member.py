"""Slurm as a scheduler: one step over the nodes of an allocation starts the agents."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from echelon.errors import RunError, UsageError
from echelon.host import Host
from echelon.scheduler import protocol
from echelon.scheduler.slurm.step import on_one_node, step_command, step_environment
from echelon.scheduler.this_machine import ThisMachine, hint_for_mpi, refusal, refuse_tasks
from echelon.spec import ALL_NODES, Job, Plan
from echelon.units import counted


class Slurm(protocol.Scheduler):
    """srun, or an MPI launcher inside of an allocation."""

    is_remote = True
    end_seconds = 20.0  # srun waits for the epilogues of its nodes
    lost_agent = rf"{protocol.Scheduler.lost_agent}|error: \S+: tasks? [\d,-]+: Exited"

    def place(self, job: Job, allocation: protocol.Allocation | None, node: str) -> protocol.RunNodes:
        if allocation is None:
            return ThisMachine().place(job, allocation, node)
        if allocation.is_task:
            return _in_own_step(job, allocation) if allocation.num_tasks == 1 else _meet_in_step(job, allocation)
        there = len(allocation.nodes)
        least = job.min_nodes if job.min_nodes != ALL_NODES else job.num_nodes
        if least > there:
            raise UsageError(
                f"you asked for {least} nodes, but job {allocation.job_id} has {there}: {', '.join(allocation.nodes)}",
                hint=f"echelon run --nnodes {there} …   or a larger allocation: salloc --nodes={least} …",
            )
        if job.num_nodes == ALL_NODES:
            return protocol.RunNodes(where="slurm", nodes=allocation.nodes, why=f"all nodes of job {allocation.job_id}")
        chosen = min(job.num_nodes, there)
        why = f"{chosen} of the {there} nodes of job {allocation.job_id}, as asked"
        return protocol.RunNodes(where="slurm", nodes=allocation.nodes[:chosen], why=why)

    def step(self, job: Job, shape: protocol.RunShape) -> tuple[str, ...]:
        return step_command(
            num_nodes=shape.num_nodes,
            tasks_per_node=shape.ranks_per_node if job.launch == "tasks" else 1,
            devices_per_node=shape.devices_per_node,
            mpi=job.mpi or "none",
            outlives_nodes=shape.outlives_nodes,
        )

    def starts(self, plan: Plan, agent: Sequence[str], environ: Mapping[str, str]) -> tuple[protocol.AgentStart, ...]:
        is_srun = not (plan.launcher is not None and plan.launcher.is_step)
        return (
            protocol.AgentStart(
                name=os.path.basename(plan.step[0]),
                words=(*plan.step, *agent),
                environ=step_environment(environ) if is_srun else environ,
            ),
        )

    def start_on(
        self, node: str, plan: Plan, command: Sequence[str], environ: Mapping[str, str]
    ) -> protocol.AgentStart:
        step = on_one_node(plan.step, node)
        return protocol.AgentStart(name="srun", words=(*step, *command), environ=step_environment(environ))

    def cannot_start(self, plan: Plan, end: protocol.End) -> UsageError | RunError:
        nodes = sorted(set(re.findall(r"error: ([\w.-]+): task", end.said))) or plan.nodes
        error = refusal(plan, end.said, nodes)
        if error is not None:
            return error
        if plan.launch == "tasks" and re.search("More processors requested|tasks", end.said):
            return protocol.not_started(
                end, f"allocate a core for each: salloc --ntasks-per-node={plan.ranks_per_node} …   or --launch warm"
            )
        if plan.mpi and "Invalid MPI type" in end.said:
            return protocol.not_started(
                end, f"this Slurm lists {plan.mpi} but cannot load it; srun --mpi=list shows the other plugins"
            )
        return protocol.not_started(end, hint_for_mpi(plan, end))

    def nodes_down(self, nodes: Sequence[str], said: str, host: Host) -> dict[str, str]:
        from echelon.scheduler.slurm.verdict import nodes_down

        return {node: f"Slurm reports that {text}" for node, text in nodes_down(nodes, said, host).items()}

    def why_ended(self, said: str, host: Host) -> protocol.EndReason | None:
        from echelon.scheduler.slurm.verdict import why_ended

        return why_ended(said, host)

    def without_lost_nodes(self, plan: Plan) -> str:
        return f"{super().without_lost_nodes(plan)}, in a job made with --no-kill"


def _in_own_step(job: Job, allocation: protocol.Allocation) -> protocol.RunNodes:
    """Stay on the node of this step's only task, with its devices and cores: other steps have the rest."""
    if job.num_nodes > 1 and job.min_nodes > 1:
        raise UsageError(
            f"you asked for {job.num_nodes} nodes, but this Slurm step has one task, on {allocation.step_nodes[0]}",
            hint=f"without srun: echelon run --nnodes {job.num_nodes} …   or "
            f"srun --nodes={job.num_nodes} --ntasks-per-node=1 echelon run …",
        )
    refuse_tasks(job)
    return protocol.RunNodes(where="here", nodes=allocation.step_nodes, why="this is the only task of its Slurm step")


def _meet_in_step(job: Job, allocation: protocol.Allocation) -> protocol.RunNodes:
    """Meet the other tasks of this process's step, as `srun torchrun …` does."""
    there = len(allocation.step_nodes)
    if allocation.num_tasks != there:
        raise UsageError(
            f"this is one of {allocation.num_tasks} Slurm tasks on {counted(there, 'node')}, "
            "and each of them would start all ranks of its node",
            hint="start echelon once, without srun: echelon run …   or once per node: srun --ntasks-per-node=1 …",
        )
    if job.num_nodes not in (ALL_NODES, there) and job.min_nodes > there:
        raise UsageError(
            f"you asked for {job.num_nodes} nodes, but this Slurm step has {there}: {', '.join(allocation.step_nodes)}",
            hint=f"srun --nodes={job.num_nodes} --ntasks-per-node=1 echelon run …",
        )
    return protocol.RunNodes(
        where="meet", nodes=allocation.step_nodes, why="one task of this Slurm step runs on each node"
    )
