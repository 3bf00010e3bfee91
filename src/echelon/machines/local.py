"""Describe this computer without a file, as one node without partitions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import date

from echelon.environment import devices, threads
from echelon.machines.machine import Machine, NodeType

LOCAL = "local"
"""The name of this machine, which has no file."""


def local(environ: Mapping[str, str] | None = None) -> Machine:
    """Return this machine as this process sees it."""
    seen = os.environ if environ is None else environ
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return describe(
        hostname=os.uname().nodename,
        architecture=os.uname().machine,
        cores=threads.cores(),
        memory_bytes=memory,
        visible=devices.visible(seen),
        vendor="nvidia" if os.path.exists("/dev/nvidiactl") else "amd" if os.path.exists("/dev/kfd") else "unknown",
        today=date.today(),
    )


def describe(
    *,
    hostname: str,
    architecture: str,
    cores: Sequence[int],
    memory_bytes: int,
    visible: Sequence[str],
    vendor: str,
    today: date,
) -> Machine:
    """Return a machine of one node from these facts."""
    source = f"{hostname} itself, as this process sees it"
    num_devices = len(visible)
    node = NodeType(
        source=source,
        seen=today,
        note="Cores are the hardware threads that this process may use.",
        name=hostname,
        chip="",
        vendor=vendor if num_devices else "none",
        num_nodes=1,
        num_devices=num_devices,
        architecture=architecture,
        num_cores=len(cores),
        memory_bytes=memory_bytes,
        cores_per_device=len(cores) // num_devices if num_devices else None,
        memory_bytes_per_device=memory_bytes // num_devices if num_devices else None,
        scratch="/tmp",
    )
    return Machine(source=source, seen=today, name=LOCAL, title=hostname, node_types=(node,))
