"""Messages between the agent and its warm process: JSON packets that may carry file descriptors."""

import json
import os
import socket
from typing import Any, Dict, List, Optional, Sequence, Tuple

MAX_PACKET_BYTES = 200_000  # below the kernel's default send buffer of a local socket (212,992)

Packet = Tuple[Dict[str, Any], List[int]]


def pair() -> Tuple[socket.socket, socket.socket]:
    """Return both ends; packets keep their boundaries, so descriptors stay with their message."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: Dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one packet; a closed other end is noticed when reading."""
    data = json.dumps(message).encode()
    try:
        if descriptors:
            socket.send_fds(sock, [data], list(descriptors))
        else:
            sock.send(data)
    except (BrokenPipeError, ConnectionResetError):
        pass


def receive(sock: socket.socket) -> Optional[Packet]:
    """Return the next packet; None if the other end has closed."""
    try:
        data, descriptors, _flags, _address = socket.recv_fds(sock, MAX_PACKET_BYTES, 8)
    except ConnectionResetError:
        return None
    if not data:
        return None
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return json.loads(data), list(descriptors)
