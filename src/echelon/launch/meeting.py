"""Nodes that are started by hand, as for torchrun: one node hosts the supervisor, the others join it."""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import shlex
import socket
import tempfile
import threading
from typing import Any, NoReturn

from echelon.errors import RunError, UsageError
from echelon.launch import agents, package
from echelon.launch.crew import listen
from echelon.node import agent_spec
from echelon.spec import Plan

RESOLVE_SECONDS = 5.0
"""The time to resolve the name of the rendezvous; a name server that takes longer does not answer at all."""


def endpoint(plan: Plan) -> tuple[str, int]:
    host, _, port = plan.rendezvous.rpartition(":")
    return host.strip("[]"), int(port)


def host(plan: Plan) -> socket.socket | None:
    """Return the listening socket if this node hosts the supervisor, None if it joins another node's.

    Node 0 hosts; without node ranks, the node that first binds the rendezvous port hosts.
    """
    _, port = endpoint(plan)
    family, kind, _, _, address = _resolved(plan)[0]
    if plan.node_rank > 0:
        return None
    if plan.node_rank == 0:
        return listen("", port)
    listener = socket.socket(family, kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)  # fails for another machine's address, and for a used port
        listener.listen(4096)
    except OSError:
        listener.close()
        return None
    listener.setblocking(False)
    return listener


def _resolved(plan: Plan) -> list[tuple[int, int, int, str, tuple[Any, ...]]]:
    """Return the addresses of the rendezvous; raise UsageError at once for an unknown name."""
    name, port = endpoint(plan)
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:  # UnicodeError: an impossible name, such as a label of 64 characters
            answers.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(RESOLVE_SECONDS)
    answer = answers[0] if answers else OSError(0, f"no name server answers within {RESOLVE_SECONDS:g} s")
    if isinstance(answer, Exception):
        raise UsageError(
            f"this machine does not know the rendezvous {plan.rendezvous}: "
            f"{getattr(answer, 'strerror', None) or answer}",
            hint=f"a name or address that every node knows, as this shows: getent hosts {shlex.quote(name)}",
        )
    addresses: list[tuple[int, int, int, str, tuple[Any, ...]]] = answer
    return addresses


def join(plan: Plan) -> NoReturn:
    folder = tempfile.mkdtemp(prefix="echelon-")
    os.mkdir(os.path.join(folder, "logs"))
    archive = os.path.join(folder, "node.pyz")
    package.write(archive)
    agent_spec.write(agents.spec(plan, [endpoint(plan)], secret(plan), is_private=True), folder)
    os.execv(plan.python, [plan.python, "-I", "-S", archive, "agent", folder, str(plan.node_rank)])


def secret(plan: Plan) -> bytes:
    """Return the secret of this meeting; only processes of the same user can derive it."""
    word = f"{plan.rendezvous} {plan.name}".encode()
    return hmac.new(_secret_of_user(), word, hashlib.sha256).digest()


def _read_own(path: str) -> bytes:
    """Read a file that no other user can read or have written."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "the file is not yours, or other users may read it")
        return file.read()


def _secret_of_user() -> bytes:
    """Read or create the user's own secret; a shared home directory brings it to every node of a cluster."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    path = os.path.join(base, "echelon", "secret")
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor, fresh = tempfile.mkstemp(dir=os.path.dirname(path))  # created with mode 0600
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.urandom(32))
        try:
            os.link(fresh, path)  # atomic, and never replaces an existing file
        except FileExistsError:
            pass
        finally:
            os.unlink(fresh)
        return _read_own(path)
    except OSError as error:
        raise RunError(
            f"nodes that you start by hand prove their identity with the secret in {path}: {error.strerror}",
            hint=f"put the same 32 random bytes there on every node; chmod 600 {path}",
        ) from None
