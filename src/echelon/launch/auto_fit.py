"""`--scale auto-fit`: trace the script before the start, and take the simplest way to scale that fits into memory."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace

from echelon.errors import RunError, UsageError
from echelon.estimate import choice, remembered
from echelon.estimate.choice import Choice
from echelon.estimate.devices import Device
from echelon.estimate.log import EventLog
from echelon.estimate.verdict import FitVerdict
from echelon.host import Host
from echelon.launch import fit
from echelon.launch.fit import TracedTraining
from echelon.machines import kept_rows
from echelon.node.survey import process
from echelon.orders.scale import AUTO_FIT, ScaleOptions
from echelon.orders.trace import TraceOrder
from echelon.plan import Surroundings, exchange
from echelon.spec import Job, Plan
from echelon.topology import devices, discover
from echelon.topology.node import Node
from echelon.units import size

CPU = "CPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The way to scale, and why."""

    how: str
    """A value of --scale: "data", "fsdp", "tensor" or "pipeline"."""
    why: str
    """What it takes, and what the next simpler way would take."""
    verdict: FitVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailableMemory:
    """The memory of each rank, and of its node."""

    device: Device
    node_bytes: int
    """0: unknown."""
    num_ranks: int
    ranks_per_node: int

    @property
    def is_device(self) -> bool:
        """Whether ranks train on devices, and not in the memory of the node."""
        return self.device.chip != CPU


def decide(job: Job, plan: Plan, around: Surroundings, host: Host) -> Fitted:
    """Trace the script for the ranks of a plan; raise UsageError if it cannot be traced, or if nothing fits."""
    if job.container:
        raise _refusal(
            f"{job.command.target} runs in the image {job.container}, but the Python of echelon would trace it",
            "echelon run --scale data …   or fsdp",
        )
    room = memory(plan, around, discover.read(environ=host.environ), host)
    traced = _trace(job, plan, room, host)
    script = shlex.join([job.command.target, *job.command.arguments])
    fitted = choose(traced, room, job.scale_options, script=script)
    _remember(job, plan, traced, fitted, room, host)
    return fitted


def _remember(job: Job, plan: Plan, traced: TracedTraining, fitted: Fitted, room: AvailableMemory, host: Host) -> None:
    """Keep what was predicted in the user's folder, for the report of the run."""
    if job.command.kind != "script":
        return
    path, arguments = os.path.join(plan.folder, os.path.basename(plan.argv[1])), plan.argv[2:]
    own = job.scale_options.keeps_batch
    training = remembered.training_of(path, arguments, fitted.how, room.num_ranks, has_own_batches=own)
    if training is None:
        return
    log = traced.log
    rows = fitted.verdict.layout.rows or log.rows
    prediction = remembered.predict(training, fitted.verdict, torch=log.torch, rows=rows, time=host.now())
    kept_rows.add(remembered.MemoryPrediction.FILE, [prediction.as_row()], host.environ)


def memory(plan: Plan, around: Surroundings, node: Node, host: Host) -> AvailableMemory:
    """Return the memory of a rank: its share of a device; without devices its share of this node."""
    num_devices = plan.devices_per_node or around.num_devices
    ranks_per_node = plan.ranks_per_node or num_devices or 1
    seen = process.read_cores("/", node)
    node_bytes = min((each for each in (seen.memory_bytes, seen.memory_limit_bytes) if each), default=0)
    if not num_devices:
        device = Device(chip=CPU, memory_bytes=node_bytes // ranks_per_node)
    else:
        sharers = -(-ranks_per_node // num_devices)
        device = _device(around, node, host)
        device = replace(device, memory_bytes=device.memory_bytes // sharers)
    return AvailableMemory(
        device=device,
        node_bytes=node_bytes,
        num_ranks=max(plan.num_nodes, 1) * ranks_per_node,
        ranks_per_node=ranks_per_node,
    )


def _device(around: Surroundings, node: Node, host: Host) -> Device:
    """Return the smallest of the visible devices, or that of the machine's facts."""
    known = [device for device in devices.visible(node, host.environ) if device.memory_bytes]
    kind = around.site.kind
    chip = kind.chip if kind is not None else ""
    if known:
        least = min(known, key=lambda device: device.memory_bytes)
        return Device(chip=chip or least.model, memory_bytes=least.memory_bytes)
    if kind is not None and kind.device_memory_bytes:
        return Device(chip=chip, memory_bytes=kind.device_memory_bytes)
    raise _refusal("neither this node nor a machine file tells the memory of a device", "echelon run --scale data …")


def choose(traced: TracedTraining, room: AvailableMemory, options: ScaleOptions, *, script: str) -> Fitted:
    """Choose for a traced script; raise UsageError if no way to scale fits, or if a run would refuse all that do."""
    log = traced.log
    rows = log.rows * room.num_ranks if options.keeps_batch else 0
    possible = [
        layout
        for layout in choice.layouts(log, room.num_ranks, room.ranks_per_node, rows=rows)
        if exchange.goes_with(options, choice.how(layout))
    ]
    tried = [layout for layout in possible if not traced.refusal_of(layout)]
    if possible and not tried:
        raise _refusal(f"{script}: {traced.refusal_of(possible[0])}", f"echelon run -n 1 {script}")
    chosen = choice.choose_scaled(log, room.device, tried)
    if chosen.chosen is None:
        raise _refusal(f"{script}: {chosen.why}{_of(room)}", _what_fits(log, room, rows, script))
    layout = chosen.chosen.layout
    why = chosen.why + _of(room) + traced.doubt_of(layout)
    return Fitted(how=choice.how(layout) or "data", why=why, verdict=chosen.chosen)


def _of(room: AvailableMemory) -> str:
    return "" if room.is_device else f" (the share of a rank in the {size(room.node_bytes)} of this node)"


def _what_fits(log: EventLog, room: AvailableMemory, rows: int, script: str) -> str:
    """Say what would fit if the script may change."""
    other: Choice = choice.choose(
        log,
        room.device,
        room.num_ranks,
        ranks_per_node=room.ranks_per_node,
        node_bytes=room.node_bytes if room.is_device else 0,
        rows=rows,
    )
    if other.chosen is not None:
        need = f"at most {size(other.chosen.high_bytes)}"
        return f"{other.chosen.layout.name} fits, {need}: run.parallelize(model, echelon.{other.chosen.layout.code})"
    return f"echelon fit {script}   says what to change first"


def _trace(job: Job, plan: Plan, room: AvailableMemory, host: Host) -> TracedTraining:
    """Trace the script with the words of its ranks."""
    command = job.command
    number = len(command.arguments)
    question = TraceOrder(
        target=command.target,
        kind=command.kind,
        arguments=tuple(plan.argv[-number:]) if number else (),
        device="gpu" if room.is_device else "cpu",
        device_bytes=room.device.memory_bytes,
    )
    try:
        return fit.trace(question, host)
    except (UsageError, RunError) as error:
        script = shlex.join([command.target, *command.arguments])
        hint = error.hint if "--assume" not in (error.hint or "") else f"echelon fit --assume LINE=VALUE {script}"
        raise UsageError(
            f"--scale {AUTO_FIT}: {error.message}", hint=hint or "echelon run --scale data …", details=error.details
        ) from None


def _refusal(problem: str, hint: str) -> UsageError:
    return UsageError(f"--scale {AUTO_FIT}: {problem}", hint=hint)
