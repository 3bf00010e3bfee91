"""Find ports that are free on this node and stay free until a rank serves them."""

import socket
from typing import List

LOWEST_PORT = 20000


def _ephemeral_range() -> "tuple[int, int]":
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            low, high = file.read().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32768, 60999  # the default of Linux


def _is_free(port: int) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind(("", port))
        except OSError as error:
            if error.errno in (97, 99):  # this node has no IPv6
                continue
            return False
    return True


def free_ports(count: int) -> List[int]:
    """Return free ports outside the range from which the kernel serves connect() and bind(0).

    An outgoing connection could take a port of that range between this check and the rank's bind.
    """
    import random  # only one agent of a run needs it in its first second

    low, high = _ephemeral_range()
    candidates = [*range(LOWEST_PORT, low), *range(high + 1, 65536)] or list(range(LOWEST_PORT, 65536))
    ports: List[int] = []
    for port in random.sample(candidates, min(len(candidates), count + 2000)):
        if len(ports) == count:
            break
        if _is_free(port):
            ports.append(port)
    return ports
