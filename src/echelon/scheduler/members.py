"""The schedulers, each by the word that a plan has for the place of its nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from echelon.host import Host

if TYPE_CHECKING:
    from echelon.scheduler.protocol import Allocation, RunNodes, Scheduler
    from echelon.spec import Job


def of(where: str) -> Scheduler:
    if where == "slurm":
        from echelon.scheduler.slurm.member import Slurm

        return Slurm()
    if where == "ssh":
        from echelon.scheduler.hosts import Hosts

        return Hosts()
    from echelon.scheduler.this_machine import ThisMachine

    return ThisMachine()


def place(job: Job, allocation: Allocation | None, node: str) -> RunNodes:
    """Return the nodes of a job on this machine, which is called `node`."""
    scheduler = of("ssh" if job.hosts else "slurm" if allocation is not None else "here")
    return scheduler.place(job, allocation, node)


def allocation_of(host: Host) -> Allocation | None:
    """Return the allocation that this process may use, with its devices; None outside of one."""
    from echelon.scheduler.slurm import allocation, queue

    return allocation.read(host.environ, partial(queue.ask, host))


def ask_about_signals(host: Host) -> Callable[[], bool]:
    """Ask in a thread whether a signal to the job reaches ranks without their agents; return what waits for the answer.

    The answer may be the slowest part of a start.
    """
    from echelon.scheduler.slurm import allocation

    if not allocation.is_inside(host.environ):
        return lambda: False
    import threading

    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(allocation.reach_ranks(host)), daemon=True)
    thread.start()

    def wait() -> bool:
        thread.join()
        return answers[0]

    return wait
