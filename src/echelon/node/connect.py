"""Connect to the supervisor; both ends prove that they hold the run's secret.

Show the supervisor each second that this process runs.

A thread sends the beat: where a slow disk stops the agent's loop, the training goes on, and so does the beat.
"""

import _thread  # threading would cost every agent memory
import socket
import time
from typing import Any, Dict, Sequence, Tuple

from . import PROTOCOL
from .channel import Channel, Closed, Message, encode, keep_alive, parse
from .secret import nonce, proof, proves

HANDSHAKE_SECONDS = 20.0
GONE_SECONDS = 1.0  # a supervisor listens before it starts its agents
MAX_STRANGE_ROUNDS = 3  # a single one may be an overflowed backlog, or a resolver that did not know a name for a moment


class ConnectError(Exception):
    """The supervisor cannot be reached, or another program answers there."""


class Refused(ConnectError):
    """The supervisor answered and refused this agent."""


def connect(
    addresses: Sequence[Tuple[str, int]],
    secret: bytes,
    facts: Dict[str, Any],
    *,
    seconds: float,
    refused_seconds: float = GONE_SECONDS,
) -> Channel:
    """Return an authenticated channel; try every address again until the time is over.

    If all addresses have refused for `refused_seconds`, the supervisor is gone.
    """
    all_refuse_since = time.monotonic()
    deadline = all_refuse_since + seconds
    problems: Dict[str, str] = {}
    pause = 0.01
    num_strange_rounds = 0
    while True:
        is_strange, num_refused = False, 0
        for host, port in addresses:
            try:
                return _try(host, port, secret, facts, seconds=min(5.0, seconds))
            except Refused:
                raise
            except ConnectError as error:  # another service may listen there: the next address may be the right one
                problems["%s:%d" % (host, port)] = str(error)
                is_strange = True
            except OSError as error:
                problems["%s:%d" % (host, port)] = str(error)
                num_refused += isinstance(error, ConnectionRefusedError)
        num_strange_rounds += is_strange
        now = time.monotonic()
        if num_refused < len(addresses):
            all_refuse_since = now
        is_late = now + pause > deadline or now - all_refuse_since > refused_seconds
        if is_late or num_strange_rounds == MAX_STRANGE_ROUNDS:
            raise ConnectError("; ".join("%s: %s" % item for item in problems.items()))
        time.sleep(pause)
        pause = min(pause * 2, 0.5)


def _try(host: str, port: int, secret: bytes, facts: Dict[str, Any], *, seconds: float) -> Channel:
    sock = socket.create_connection((host, port), timeout=seconds)
    keep_alive(sock)
    try:
        return _shake_hands(Channel(sock), secret, facts)
    except BaseException:
        sock.close()
        raise


def _shake_hands(channel: Channel, secret: bytes, facts: Dict[str, Any]) -> Channel:
    challenge = _next(channel, "challenge")
    if challenge.get("version") != PROTOCOL:
        raise Refused(
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
    """Wait for one message of this kind; any other message is an error during the handshake."""
    channel.socket.settimeout(HANDSHAKE_SECONDS)
    line = bytearray()
    try:
        while not line.endswith(b"\n"):
            data = channel.socket.recv(1)  # one byte at a time: the data after the line belongs to the next reader
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
        raise Refused(str(message.get("why")))
    if message["kind"] != kind:
        raise ConnectError("expected %r, got %r" % (kind, message["kind"]))
    return message


BEAT_SECONDS = 1.0


def start_beat(channel: Channel) -> None:
    _thread.start_new_thread(_beat, (channel,))


def _beat(channel: Channel) -> None:
    line = encode("beat")
    while channel.send_beside(line):
        time.sleep(BEAT_SECONDS)
