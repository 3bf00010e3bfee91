"""Nodes that are started by hand, as torchrun's are: one of them hosts the supervisor, the others join it."""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import socket
import tempfile
from typing import NoReturn

from echelon.errors import RunError
from echelon.launch import orders, package
from echelon.launch.crew import listen
from echelon.node import order as node_order
from echelon.spec import Plan


def endpoint(plan: Plan) -> tuple[str, int]:
    """Return host and port of the rendezvous."""
    host, _, port = plan.rendezvous.rpartition(":")
    return host.strip("[]"), int(port)


def host(plan: Plan) -> socket.socket | None:
    """Return the listening socket if this node hosts the supervisor, or None if it joins another's.

    Node 0 hosts; where nobody has a number, whoever takes the port at the rendezvous first.
    """
    name, port = endpoint(plan)
    if plan.node_rank > 0:
        return None
    if plan.node_rank == 0:
        return listen("", port)
    try:
        family, kind, _, _, address = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise RunError(f"this machine does not know the rendezvous {plan.rendezvous}: {error.strerror}") from None
    listener = socket.socket(family, kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)  # fails for an address of another machine, and for a port that is taken
        listener.listen(4096)
    except OSError:
        listener.close()
        return None
    listener.setblocking(False)
    return listener


def join(plan: Plan) -> NoReturn:
    """Become this node's agent."""
    folder = tempfile.mkdtemp(prefix="echelon-")
    os.mkdir(os.path.join(folder, "logs"))
    archive = os.path.join(folder, "node.pyz")
    package.write(archive)
    node_order.write(orders.order(plan, [endpoint(plan)], secret(plan), is_private=True), folder)
    os.execv(plan.python, [plan.python, "-I", "-S", archive, "agent", folder, str(plan.node_rank)])


def secret(plan: Plan) -> bytes:
    """Return the secret of this meeting, which only processes of the same user can derive."""
    word = f"{plan.rendezvous} {plan.name}".encode()
    return hmac.new(_secret_of_user(), word, hashlib.sha256).digest()


def _read_own(path: str) -> bytes:
    """Read a file that no other user may read or have put there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "the file is not yours, or other users may read it")
        return file.read()


def _secret_of_user() -> bytes:
    """Read or make the user's own secret; on a cluster the home directory brings it to every node."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    path = os.path.join(base, "echelon", "secret")
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor, fresh = tempfile.mkstemp(dir=os.path.dirname(path))  # mode 0600
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.urandom(32))
        try:
            os.link(fresh, path)  # whole or not at all, and never over one that is there
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
