"""Find the supervisor and prove to each other that both hold the run's secret."""

import socket
import time
from typing import Any, Dict, Sequence, Tuple

from . import PROTOCOL
from .channel import Channel, Closed, Message, keep_alive, nonce, parse, proof, proves

HANDSHAKE_SECONDS = 20.0


class ConnectError(Exception):
    """The supervisor cannot be reached, or is not ours."""


def connect(addresses: Sequence[Tuple[str, int]], secret: bytes, facts: Dict[str, Any], *, seconds: float) -> Channel:
    """Return an authenticated channel; try every address again until the time is over."""
    deadline = time.monotonic() + seconds
    problems: Dict[str, str] = {}
    pause = 0.01
    while True:
        for host, port in addresses:
            try:
                sock = socket.create_connection((host, port), timeout=min(5.0, seconds))
            except OSError as error:
                problems["%s:%d" % (host, port)] = str(error)
                continue
            keep_alive(sock)
            return _shake_hands(Channel(sock), secret, facts)
        if time.monotonic() + pause > deadline:
            raise ConnectError("; ".join("%s: %s" % item for item in problems.items()))
        time.sleep(pause)
        pause = min(pause * 2, 0.5)


def _shake_hands(channel: Channel, secret: bytes, facts: Dict[str, Any]) -> Channel:
    challenge = _next(channel, "challenge")
    if challenge.get("version") != PROTOCOL:
        raise ConnectError(
            "the supervisor speaks version %s of the protocol, this agent version %s: "
            "install the same echelon on every node" % (challenge.get("version"), PROTOCOL)
        )
    ours = nonce()
    channel.send(
        "hello",
        version=PROTOCOL,
        nonce=ours,
        proof=proof(secret, "agent", challenge["nonce"] + ours),
        asked=challenge["time"],
        time=time.time(),
        **facts,
    )
    answer = _next(channel, "welcome")
    if not proves(secret, "supervisor", ours + challenge["nonce"], answer.get("proof")):
        raise ConnectError("what answered is not this run's supervisor")
    return channel


def _next(channel: Channel, kind: str) -> Message:
    """Wait for one message of a kind; nothing else may come during the handshake."""
    channel.socket.settimeout(HANDSHAKE_SECONDS)
    line = bytearray()
    try:
        while not line.endswith(b"\n"):
            data = channel.socket.recv(1)  # one byte at a time: what follows the line belongs to the next reader
            if not data:
                raise ConnectError("the supervisor closed the connection: the secret or the version differs")
            line += data
    except OSError as error:
        raise ConnectError("the supervisor does not answer: %s" % error) from None
    finally:
        channel.socket.setblocking(False)
    try:
        message = parse(bytes(line))
    except Closed as error:
        raise ConnectError(str(error)) from None
    if message["kind"] == "refused":
        raise ConnectError(str(message.get("why")))
    if message["kind"] != kind:
        raise ConnectError("expected %r, got %r" % (kind, message["kind"]))
    return message
