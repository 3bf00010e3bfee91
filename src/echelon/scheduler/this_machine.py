"""This machine as a scheduler: one child is its agent, or an MPI launcher starts them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from echelon.errors import RunError, UsageError
from echelon.scheduler import protocol
from echelon.scheduler.protocol import AgentStart, Allocation, End, RunNodes, Scheduler
from echelon.spec import Job, Plan


class ThisMachine(Scheduler):
    """This machine; where nodes meet that are started by hand, the agent of the one that hosts the supervisor."""

    is_remote = False
    end_seconds = 3.0

    def place(self, job: Job, allocation: Allocation | None, node: str) -> RunNodes:  # noqa: ARG002
        if job.num_nodes > 1 and (job.min_nodes > 1 or job.rendezvous):
            if not job.rendezvous:
                raise UsageError(
                    f"you asked for {job.num_nodes} nodes, but this is a single machine outside any Slurm allocation",
                    hint=f"salloc --nodes={job.num_nodes} …, then the same command; "
                    "or start it on each node yourself: "
                    f"echelon run --nnodes={job.num_nodes} --node-rank=K --master-addr=HOST --master-port=PORT …",
                )
            if job.rendezvous.endswith(":0"):
                host = job.rendezvous.rpartition(":")[0]
                raise UsageError(
                    f"--rdzv-endpoint {job.rendezvous}: give a port, a whole number from 1 to 65535",
                    hint=f"--rdzv-endpoint {host}:29400",
                )
            if job.node_rank >= job.num_nodes:
                raise UsageError(
                    f"--node-rank {job.node_rank}: the last of {job.num_nodes} nodes has number {job.num_nodes - 1}",
                    hint=f"--node-rank {job.num_nodes - 1}",
                )
            refuse_tasks(job)
            why = "you start each node by hand, and it meets the others at the rendezvous"
            return RunNodes(where="meet", nodes=(), why=why)
        refuse_tasks(job)
        return RunNodes(where="here", nodes=(node,), why="not in a Slurm allocation, so this machine")

    def starts(self, plan: Plan, agent: Sequence[str], environ: Mapping[str, str]) -> tuple[AgentStart, ...]:
        if plan.step:
            return (AgentStart(name=os.path.basename(plan.step[0]), words=(*plan.step, *agent), environ=environ),)
        # where nodes meet, the hosting node is number 0
        return (AgentStart(name="the agent", words=(*agent, str(max(plan.node_rank, 0))), environ=environ),)

    def start_on(self, node: str, plan: Plan, command: Sequence[str], environ: Mapping[str, str]) -> AgentStart:  # noqa: ARG002
        return AgentStart(name="the agent", words=tuple(command), environ=environ)

    def cannot_start(self, plan: Plan, end: End) -> UsageError | RunError:
        return refusal(plan, end.said, plan.nodes) or protocol.not_started(end, hint_for_mpi(plan, end))


def refuse_tasks(job: Job) -> None:
    if job.launch == "tasks" and not (job.launcher is not None and job.launcher.is_step):
        raise UsageError(
            "--launch tasks needs a Slurm allocation, but this is not a Slurm job",
            hint="choose --launch warm or --launch exec",
        )


def refusal(plan: Plan, said: str, nodes: Sequence[str]) -> UsageError | None:
    """Return the error for agents without their program, or without Python; None if the reason is another one."""
    if "can't open file" in said:
        return protocol.not_on_every_node(plan)
    if not plan.mpi and re.search(r"execve\(\).*No such file|No such file or directory", said):
        return protocol.without_python(plan, nodes)
    return None


def hint_for_mpi(plan: Plan, end: End) -> str:
    return f"run the same line without echelon to see whether {end.start.name} works here" if plan.mpi else ""
