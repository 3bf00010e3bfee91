"""Nodes that are network namespaces of this machine, each on one switch by a link of its own; one link can be slow."""

import os
import shutil
import subprocess
import time
from types import TracebackType

SLOW_LINK = "rate 20mbit burst 32kb latency 200ms"
PATIENCE_SECONDS = 20.0


class CannotShape(Exception):
    """This machine lets nobody make namespaces, links or shapers."""

    @property
    def has_tools(self) -> bool:
        return not missing_tools()


class Network:
    """A switch and its nodes: 192.0.2.1, 192.0.2.2 …; all is gone when the processes that hold it are."""

    def __init__(self, num_nodes: int) -> None:
        self.num_nodes = num_nodes
        self._holders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Network":
        try:
            for _ in range(self.num_nodes + 1):
                self._holders.append(hold_namespace())
            self._connect()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()

    def inside(self, node: int) -> tuple[str, ...]:
        """Return the words that stand before a command which is to run on a node."""
        return "nsenter", f"--net=/proc/{self._holders[node].pid}/ns/net"

    @staticmethod
    def address(node: int) -> str:
        return f"192.0.2.{node + 1}"  # of a range that is for examples, RFC 5737

    def slow_down(self, node: int) -> None:
        """Shape what leaves a node and what comes to it: a bad cable, or a port that has fallen back."""
        do(*self.inside(node), "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *SLOW_LINK.split())
        port = f"port{node}"
        do(*self.inside(self.num_nodes), "tc", "qdisc", "add", "dev", port, "root", "tbf", *SLOW_LINK.split())

    def _connect(self) -> None:
        switch = self.inside(self.num_nodes)
        do(*switch, "ip", "link", "add", "switch", "type", "bridge")
        do(*switch, "ip", "link", "set", "switch", "up")
        for node in range(self.num_nodes):
            ends = ("type", "veth", "peer", "name", "eth0", "netns", str(self._holders[node].pid))
            do(*switch, "ip", "link", "add", f"port{node}", *ends)
            do(*switch, "ip", "link", "set", f"port{node}", "master", "switch", "up")
            do(*self.inside(node), "ip", "address", "add", f"{self.address(node)}/24", "dev", "eth0")
            for name in ("eth0", "lo"):
                do(*self.inside(node), "ip", "link", "set", name, "up")


def missing_tools() -> list[str]:
    return [tool for tool in ("unshare", "nsenter", "ip", "tc") if not shutil.which(tool)]


def hold_namespace() -> subprocess.Popen[bytes]:
    """Start a process in a network namespace of its own; the namespace lives as long as it does."""
    if missing_tools():
        raise CannotShape(f"not installed: {', '.join(missing_tools())}")
    holder = subprocess.Popen(["unshare", "--net", "sleep", "900"], stderr=subprocess.PIPE)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while namespace(holder.pid) == namespace(os.getpid()):
        if holder.poll() is not None or time.monotonic() > deadline:
            holder.kill()
            raise CannotShape(f"unshare --net: {holder.communicate()[1].decode().strip()}")
        time.sleep(0.01)
    return holder


def namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except FileNotFoundError:
        return namespace(os.getpid())


def do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise CannotShape(f"{' '.join(words)}: {done.stderr.strip()}")
