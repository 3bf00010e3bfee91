"""An sshd of a test's own: on loopback addresses, at a port of its own, with keys that nobody else has."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
SERVER = """\
Port {port}
{addresses}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
AcceptEnv HIDDEN
Match LocalAddress {hiding}
  ForceCommand exec bwrap --dev-bind / / --tmpfs "$HIDDEN" sh -c "$SSH_ORIGINAL_COMMAND"
"""
CLIENT = """\
Host *
  Port {port}
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known
  GlobalKnownHostsFile /dev/null
  SendEnv HIDDEN
"""


def program() -> str:
    """Return the path of sshd; skip the test without one, but fail where CI=true."""
    path = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if path is None or shutil.which("ssh") is None:
        assert os.environ.get("CI") != "true", "no sshd: tools/install-slurm installs it"
        pytest.skip("no sshd: tools/install-slurm installs it")
    return path


@contextlib.contextmanager
def serving(folder: Path, *, hiding: str) -> Iterator[str]:
    """Run sshd, and offer the command of a client that reaches it.

    The address `hiding` is a host that does not see the folder in the variable HIDDEN.
    """
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with socket.socket() as free:
        free.bind((ADDRESSES[0], 0))
        port = free.getsockname()[1]
    key = " ".join((folder / "host.pub").read_text().split()[:2])
    addresses = "\n".join(f"ListenAddress {address}" for address in ADDRESSES)
    (folder / "known").write_text("".join(f"[{address}]:{port} {key}\n" for address in ADDRESSES))
    (folder / "server").write_text(SERVER.format(port=port, folder=folder, addresses=addresses, hiding=hiding))
    (folder / "client").write_text(CLIENT.format(port=port, folder=folder))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd of root does not start without this empty folder
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen([program(), "-D", "-e", "-f", folder / "server"], stderr=log, cwd="/") as server,
    ):
        try:
            _wait_for(port, folder / "log")
            yield f"ssh -F {folder / 'client'}"
        finally:
            server.terminate()


def _wait_for(port: int, log: Path) -> None:
    deadline = time.monotonic() + 10.0
    while True:
        try:
            socket.create_connection((ADDRESSES[-1], port), timeout=1.0).close()
        except OSError:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        else:
            return
