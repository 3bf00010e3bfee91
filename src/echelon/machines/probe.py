"""Ask one node of a partition for the nearest cores of each device, with a short Slurm step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from echelon.errors import EchelonError
from echelon.host import Host
from echelon.machines import cores
from echelon.machines.machine import NearestCores, NodeType

QUEUE_SECONDS = 600.0
"""How long the step may wait for its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A node's statements about its devices; None and empty mean unknown."""

    nearest: tuple[NearestCores, ...]
    vendor: str
    num_chips: int | None
    device_memory_bytes: int | None


def probe(host: Host, partition: str, kind: NodeType, *, archive: str, options: Sequence[str], today: date) -> Probed:
    """Read the topology of one node of the partition; raise EchelonError if that fails.

    `archive` is node.pyz, in a folder that the node sees; `options` are the user's own for srun, such as an account.
    """
    argv = command(partition, kind, archive=archive, options=options)
    answer = host.ask(argv, timeout_seconds=QUEUE_SECONDS)
    if answer.exit_code:
        lines = [line for line in answer.stderr.splitlines() if line.strip()]
        said = next((line for line in lines if not line.startswith("srun: ")), lines[-1] if lines else "nothing")
        raise EchelonError(
            f"the probe of partition {partition} ended with {answer.exit_code}: {said}",
            hint="echelon machines learn   without --probe",
        )
    return read(answer.stdout, partition, reserved=kind.reserved_cores, today=today)


def command(partition: str, kind: NodeType, *, archive: str, options: Sequence[str]) -> tuple[str, ...]:
    """Return the command of the step: it takes a whole node for a moment, to see all devices."""
    gres = f"--gres={kind.gres}:{kind.num_devices}" if kind.num_devices else ""
    return (
        "srun", f"--partition={partition}", "--nodes=1", "--ntasks=1", "--exclusive", "--cpu-bind=none", "--time=5",
        "--mpi=none", "--input=none", *((gres,) if gres else ()), *options, "python3", "-I", "-S", archive, "topology",
    )  # fmt: skip


def read(text: str, partition: str, *, reserved: Sequence[int], today: date) -> Probed:
    """Read {"format":1,"devices":[{"number":0,"numa":3,"cores":[49,50],"pci":"0000:c1:00.0","nic":"hsn0"}]}."""
    try:
        topology = json.loads(text)
        if topology["format"] != 1:
            raise EchelonError(f"the probe answers in format {topology['format']}, but this echelon reads format 1")
        devices = list(topology["devices"])
        # the first hardware thread stands for its core: Slurm may hand out the others, or not
        siblings = _siblings(topology) | frozenset(reserved)
        rows = [_row(device, partition, siblings, today) for device in devices]
    except (ValueError, KeyError, TypeError) as error:
        raise EchelonError(f"the probe of partition {partition} gave no topology: {error!r}") from None
    chips = {device["chip"] for device in devices if "chip" in device}
    return Probed(
        nearest=tuple(row for row in rows if row.cores),
        vendor=next((str(device["vendor"]) for device in devices if device.get("vendor")), ""),
        num_chips=len(chips) or None,
        device_memory_bytes=next((device["memory_bytes"] for device in devices if device.get("memory_bytes")), None),
    )


def _siblings(topology: dict[str, Any]) -> frozenset[int]:
    """Return all hardware threads except the first of each core."""
    lists = [cores.read(text) or () for text in topology.get("cpus", {}).get("cores", ())]
    return frozenset(number for numbers in lists for number in numbers[1:])


def _row(device: dict[str, Any], partition: str, left_out: frozenset[int], today: date) -> NearestCores:
    numa = device.get("numa")
    return NearestCores(
        source=f"the inside of a node of partition {partition}, by a probe",
        seen=today,
        device=int(device["number"]),
        numa=numa if isinstance(numa, int) and numa >= 0 else None,
        cores=tuple(core for core in sorted(device.get("cores") or ()) if core not in left_out),
        pci_bus=str(device.get("pci") or ""),
        nic=str(device.get("nic") or ""),
    )
