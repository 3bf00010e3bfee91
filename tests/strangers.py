"""Another user of the machine, and what that user can find of a run."""

import json
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

UID = 65534  # nobody
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 and os.environ.get("CI") != "true", reason="becomes another user, which only root may"
)


def as_stranger(act: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a process of another user; return what it gives, as JSON can hold it."""
    "".encode("idna")  # imports what that user cannot read
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            become_stranger()
            os.write(writing, json.dumps(act(*args)).encode())
        except BaseException:  # noqa: BLE001  (whatever it is, the test shows it)
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert said, "the stranger failed"
    return json.loads(said)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a folder that other users see, which those of pytest are not."""
    folder = tempfile.mkdtemp()
    os.chmod(folder, 0o755)
    yield Path(folder)
    shutil.rmtree(folder)


def become_stranger() -> None:
    """Give up all rights."""
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)


def pids_of(directory: Path) -> list[int]:
    """Return the processes that belong to a run."""
    addresses = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            seen = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(directory).encode() in seen and int(entry.name) != os.getpid():
            addresses.append(int(entry.name))
    return addresses


def ports_of(directory: Path) -> dict[int, list[str]]:
    """Return the ports at which processes of a run listen, each with its addresses as the kernel writes them."""
    sockets = set()
    for pid in pids_of(directory):
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                sockets.add(os.readlink(descriptor))
            except OSError:
                continue
    groups: dict[int, list[str]] = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:  # 0A: it listens
                address, _, port = words[1].rpartition(":")
                groups.setdefault(int(port, 16), []).append(address)
    return groups
