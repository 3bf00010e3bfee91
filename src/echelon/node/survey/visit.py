"""`python3 node.pyz survey DIRECTORY`: survey this node, send the answer, and try the other nodes' doors."""

import json
import os
import select
import sys
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

from ...environment.slurm_agent import agent_task
from .. import private
from ..channel import Channel, Closed, Message
from ..connect import ConnectError, connect
from . import meet, take
from .nouns import plain

ORDER = "survey.json"
PATIENCE_SECONDS = 120.0


class AgentSpec(NamedTuple):
    """The content of survey.json."""

    addresses: List[Tuple[str, int]]  # addresses of the receiver
    asked: Dict[str, Any]
    connect_seconds: float
    word: str  # the greeting of all doors


def write(directory: str, spec: AgentSpec, secret: bytes) -> None:
    """Write the order and the secret, readable only by the user."""
    private.write(os.path.join(directory, ORDER), json.dumps(spec._asdict()).encode())
    private.write_secret(directory, secret)


def read(directory: str) -> Tuple[AgentSpec, bytes]:
    """Read the order and the secret."""
    with open(os.path.join(directory, ORDER), encoding="utf-8") as file:
        fields = json.load(file)
    fields["addresses"] = [(host, port) for host, port in fields["addresses"]]
    return AgentSpec(**fields), private.read_secret(directory)


def main(directory: str, environ: Mapping[str, str]) -> int:
    """Survey this node and answer until the receiver closes the connection."""
    spec, secret = read(directory)
    task = agent_task(environ)
    asked = take.Asked(**spec.asked)._replace(node=task.node if task else "")
    door = meet.Door(spec.word)
    index = task.agent_index if task else 0
    survey = take.survey(asked, environ)
    hello = facts(index, survey.node)
    try:
        channel = connect(spec.addresses, secret, hello, seconds=spec.connect_seconds)
    except ConnectError as error:
        sys.stderr.write("echelon: survey of %s: %s\n" % (survey.node, error))
        return 1
    channel.send("survey", survey=plain(survey), port=door.port)
    try:
        _serve(channel, door, spec.word)
    except Closed:
        return 0
    return 0


def facts(index: int, node: str) -> Dict[str, Any]:
    """Return the facts of an agent's hello."""
    return {
        "agent_index": index,
        "node_rank": index,
        "node": node,
        "first_local_rank": 0,
        "num_ranks": 0,
        "local_world_size": 0,
        "num_cores": 0,
        "num_devices": 0,
        "agent_pid": os.getpid(),
    }


def _serve(channel: Channel, door: meet.Door, word: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        channel.flush()
        writing = [channel.fileno()] if channel.has_unsent else []
        ready, _, _ = select.select([channel.fileno(), door.socket.fileno()], writing, [], 1.0)
        if door.socket.fileno() in ready:
            door.answer()
        for message in channel.receive() if channel.fileno() in ready else ():
            if message["kind"] == "end":
                return
            _obey(channel, door, word, message)


def _obey(channel: Channel, door: meet.Door, word: str, message: Message) -> None:
    if message["kind"] == "visit":
        doors = {node: (host, port) for node, (host, port) in message["doors"].items()}
        unreached = meet.visit(doors, word, own=door, seconds=message["seconds"])
        channel.send("visited", unreached=unreached)
