"""Read the topology of this node from a file tree, which may be a copy of another node's."""

import os
from typing import Mapping, Optional

from . import amd, cpus, files, nics, nvidia, nvml
from .node import Cpu, Node


def read(root: str = "/", environ: Optional[Mapping[str, str]] = None) -> Node:
    """Return the node; parts that cannot be read stay unknown, and nothing raises.

    The environment only decides whose devices count on a node with two vendors: a processor's own graphics beside
    a card. It filters nothing: `visible.visible` does.
    """
    is_this_node = os.path.realpath(root) == "/"
    domains = cpus.read_domains(root)
    allowed = cpus.read_allowed(root)
    # A container that hides sysfs shows only the allowed threads.
    threads = cpus.read_cpus(root, domains.of_cpu) or tuple(Cpu(number, number, -1, -1, -1) for number in allowed)
    online = {cpu.number for cpu in threads}
    amds = amd.read(root)
    nvidias = nvidia.read(root, nvml.module() if is_this_node and _has_nvidia(root) else None)
    devices, links = amds if _is_amd(bool(amds[0]), bool(nvidias[0]), environ or {}) else nvidias
    return Node(
        name=files.text(os.path.join(root, "proc/sys/kernel/hostname")),
        cpus=threads,
        allowed=tuple(number for number in allowed if number in online),
        numa_distances=domains.distances,
        numa_memory_bytes=domains.memory_bytes,
        devices=devices,
        nics=nics.read(root),
        device_links=links,
    )


def _has_nvidia(root: str) -> bool:
    """Say whether it is worth starting NVML, which takes 10 ms and more."""
    return bool(files.names(os.path.join(root, "proc/driver/nvidia/gpus"))) or os.path.exists(
        os.path.join(root, "dev/nvidiactl")
    )


def _is_amd(amd_found: bool, nvidia_found: bool, environ: Mapping[str, str]) -> bool:
    if amd_found != nvidia_found:
        return amd_found
    amd_is_meant = "ROCR_VISIBLE_DEVICES" in environ or "HIP_VISIBLE_DEVICES" in environ
    return amd_is_meant and "CUDA_VISIBLE_DEVICES" not in environ
