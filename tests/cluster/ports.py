"""Find ports that nobody listens on."""

import random
import socket

from .errors import ClusterError

# Below the ports that pages and launchers name (29400 to 29567), and those of the kernel for outgoing connections.
PORTS = range(15000, 29000)


def free_ports(count: int) -> list[int]:
    """Draw free ports at random; another program may still take one before it is used."""
    found: list[int] = []
    # Not the seed of the tests: two clusters that start at once must draw differently.
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise ClusterError(f"{count} free ports are needed, {len(found)} found in {PORTS.start}-{PORTS.stop - 1}")
