"""Find the address and the port of rank 0: all ranks derive the same values without communication."""

from __future__ import annotations

import os
from collections.abc import Mapping

from . import digits
from .errors import SurroundingError

ONE_NODE = "127.0.0.1"

# Linux gives outgoing connections the ports 32768-60999: a lower port is never taken by one.
_FIRST_PORT = 20000
_NUM_PORTS = 10000


def port(environ: Mapping[str, str], job: int, step: int = 0) -> int:
    """Return the user's MASTER_PORT, or a port that every rank of a job and step derives alike."""
    text = environ.get("MASTER_PORT", "")
    if not text:
        # Even numbers only, so that the next port stays free for a second server of rank 0.
        return _FIRST_PORT + 2 * ((job + 1009 * step) % (_NUM_PORTS // 2))
    if not 0 < digits.whole(text) < 65536:
        raise SurroundingError(f"MASTER_PORT={text!r} is not a port: set a number from 1 to 65535", "unset MASTER_PORT")
    return int(text)


def number_of(text: str) -> int:
    """Hash the name of a job to a number that is equal in every process."""
    number = 0xCBF29CE484222325  # FNV-1a; Python's own hash differs from process to process
    for byte in text.encode("utf-8", "surrogateescape"):
        number = ((number ^ byte) * 0x100000001B3) % (1 << 64)
    return number


def is_here(host: str) -> bool:
    if host.split(".")[0] == os.uname().nodename.split(".")[0]:
        return True
    import socket  # only rank 0 of an MPI job over several nodes reaches this line

    try:
        address_infos = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in address_infos:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return True
    return False
