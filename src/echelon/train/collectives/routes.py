"""Find the network that collectives really use: the libraries in memory, and the interfaces that counted bytes."""

import os
from typing import Dict, List

TELLING = (
    "libnccl.so", "librccl.so", "libnccl-net", "librccl-net", "libfabric", "libcxi", "libibverbs", "libmlx5", "libmpi",
    "libefa", "libucp", "libucs",
)  # fmt: skip
_NET, _VERBS = "/sys/class/net", "/sys/class/infiniband"
_WORD_BYTES = 4  # InfiniBand counts words of four bytes


def libraries(maps: str) -> List[str]:
    """Return the paths of the network libraries that are mapped into a process.

    7f2c4d200000-7f2c4d3c5000 r-xp 00000000 08:02 135522 /opt/lib/libfabric.so.1.18.1
    """
    try:
        with open(maps, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    paths = {fields[5] for line in lines if len(fields := line.split(None, 5)) == 6}
    return sorted(path for path in paths if os.path.basename(path).startswith(TELLING))


def traffic(root: str = "/") -> Dict[str, int]:
    """Return the bytes that each interface has sent since it came up."""
    counts: Dict[str, int] = {}
    net = os.path.join(root, _NET.lstrip("/"))
    for name in _names(net):
        counts[name] = _number(os.path.join(net, name, "statistics/tx_bytes"))
    verbs = os.path.join(root, _VERBS.lstrip("/"))
    for name in _names(verbs):
        for port in _names(os.path.join(verbs, name, "ports")):
            counter = os.path.join(verbs, name, "ports", port, "counters/port_xmit_data")
            counts[name] = counts.get(name, 0) + _number(counter) * _WORD_BYTES
    return counts


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _number(path: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0
