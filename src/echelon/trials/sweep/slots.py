"""The slots of a sweep: a slot is a part of a node, and runs one trial at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from echelon.environment import devices
from echelon.errors import UsageError
from echelon.host import Host, own_command
from echelon.scheduler import members
from echelon.scheduler.slurm import step
from echelon.units import counted

PROGRAM = "echelon.cli.sweep_slot"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSlot:
    """A part of a node: some devices, or some cores."""

    name: str
    there: tuple[str, ...]
    """What starts a command on the node; empty: it is this one."""
    words: tuple[str, ...]
    """The command that is echelon within this part; a command of echelon follows."""
    environ: Mapping[str, str]
    num_ranks: int
    """The ranks of each run."""


def of(host: Host, asked: tuple[int, int, int]) -> list[SweepSlot]:
    """Return the slots of this machine, or of the allocation; raise UsageError where they have no room.

    The numbers are the devices of each run, its ranks, and the runs of each node; 0: not stated.
    """
    allocation = members.allocation_of(host)
    if allocation is not None and allocation.is_task and allocation.num_tasks > 1:
        raise UsageError(
            f"this is one of {allocation.num_tasks} tasks of a step, and each of them would start all trials",
            hint="start echelon once, without srun: echelon sweep …",
        )
    if allocation is None or allocation.is_task:
        return of_node("", len(devices.visible(host.environ)), (), asked, host.environ)
    environ = step.step_environment(host.environ)
    slots = []
    for node, count in zip(allocation.nodes, allocation.devices or (0,) * len(allocation.nodes), strict=True):
        command = step.step_command(num_nodes=1, tasks_per_node=1, devices_per_node=count)
        slots += of_node(node, count, step.on_one_node(command, node), asked, environ)
    return slots


def of_node(
    node: str, num_devices: int, there: tuple[str, ...], asked: tuple[int, int, int], environ: Mapping[str, str]
) -> list[SweepSlot]:
    """Return the slots of a node; without a name it is this one."""
    place, (devices_per_run, ranks_per_run, per_node) = node or "this machine", asked
    if devices_per_run and not num_devices:
        raise UsageError(
            f"--gpus-per-run {devices_per_run}: {place} has no device",
            hint=f"--ranks-per-run {devices_per_run} --slots 2",
        )
    if num_devices and ranks_per_run:
        raise UsageError(
            f"--ranks-per-run is for nodes without devices, and {place} has {num_devices}; a run has a rank for each "
            "of its devices",
            hint=f"--gpus-per-run {min(num_devices, ranks_per_run)}",
        )
    per_run = devices_per_run or min(1, num_devices)
    number = per_node or (max(1, num_devices // per_run) if per_run else 1)
    if number * per_run > num_devices:
        raise UsageError(
            f"{counted(number, 'run')} of {counted(per_run, 'device')} side by side, each on one node: {place} has "
            f"{counted(num_devices, 'device')}",
            hint=f"--gpus-per-run {min(per_run, num_devices)} --slots {max(1, num_devices // per_run)}",
        )
    return [
        SweepSlot(
            name=f"{node} {_part(index, per_run)}".strip(),
            there=there,
            words=(*there, *own_command.module(PROGRAM), str(index), str(number), str(per_run)),
            environ=environ,
            num_ranks=per_run or ranks_per_run or 1,
        )
        for index in range(number)
    ]


def _part(index: int, per_run: int) -> str:
    places = range(index * per_run, (index + 1) * per_run)
    return f"devices {','.join(map(str, places))}" if per_run else f"slot {index}"
