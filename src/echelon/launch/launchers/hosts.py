"""Lists of hosts in the formats of MPI, Horovod and DeepSpeed, from files and command lines."""

from __future__ import annotations

import re
from collections.abc import Mapping

from echelon.environment import digits, regular_files
from echelon.errors import UsageError

LINE = re.compile(
    r"(?P<host>[^\s:]+)(?::(?P<short>[0-9]{1,9})|(?:\s+(?:slots\s*=\s*(?P<slots>[0-9]{1,9})|max_slots\s*=\s*\d+))*)\s*$"
)
HERE = ("localhost", "127.0.0.1", "::1")


def read_file(path: str, *, launcher: str) -> dict[str, int]:
    """Return the hosts of a file with their slots, 0 if not stated; raise UsageError if it cannot be read."""
    try:
        text = regular_files.read_text(path)
    except OSError as error:
        raise UsageError(
            f"{launcher}: echelon cannot read the host file {path}: {error.strerror}",
            hint="in a Slurm allocation remove it: echelon knows the nodes",
        ) from None
    hosts: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        content = raw.partition("#")[0].strip()
        match = LINE.fullmatch(content)
        if content and (match is None or match["host"] in hosts):
            mistake = "names a host a second time" if match is not None else "is not `host slots=N`"
            raise UsageError(f"{launcher}: line {number} of {path} {mistake}: {raw.strip()}", hint="worker-0 slots=4")
        if match is not None and content:
            hosts[match["host"]] = int(match["short"] or match["slots"] or 0)
    if not hosts:
        raise UsageError(f"{launcher}: the host file {path} names no host", hint="worker-0 slots=4")
    return hosts


def read_list(text: str, *, launcher: str) -> dict[str, int]:
    """Return the hosts of server1:4,server2:4 with their slots, 0 if not stated."""
    hosts: dict[str, int] = {}
    for word in text.split(","):
        host, colon, slots = word.strip().partition(":")
        if not host or (colon and not digits.is_number(slots)):
            raise UsageError(f"{launcher}: {word!r} in {text!r} is not host:slots", hint="-H server1:4,server2:4")
        hosts[host] = hosts.get(host, 0) + int(slots or 0)
    return hosts


def slots_per_node(hosts: Mapping[str, int], *, launcher: str) -> int:
    """Return the slots that every host has, 0 if not stated; raise UsageError if hosts differ."""
    counts = set(hosts.values())
    if len(counts) > 1:
        listed = ", ".join(f"{host}: {slots or 'none named'}" for host, slots in hosts.items())
        least = min((count for count in counts if count), default=1)
        raise UsageError(
            f"{launcher} names different numbers of ranks for its hosts ({listed}), but with echelon every "
            "node has the same number",
            hint=f"give all hosts the same number: {next(iter(hosts))}:{least}",
        )
    return counts.pop()
