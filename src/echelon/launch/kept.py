"""The link between a supervisor and its keeper, and what of the ranks' output is on the console already."""

from __future__ import annotations

import mmap
import os
import re
import socket
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field

from echelon.launch.restarts import Restarts


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperLink:
    """The supervisor's end of the link, and what the supervisors before it did."""

    link: socket.socket
    """Signals come here, one byte each."""
    began: float
    """When the run began, by the monotonic clock."""
    num_earlier_supervisors: int
    """The number of supervisors before this one."""
    num_attempts: int
    """The number of attempts before the first one of this supervisor."""
    restarts: Restarts
    shown: ShownOutput
    """What of the ranks' output the supervisors have shown."""
    mask: Collection[int]
    """The signals to block once the supervisor listens; before, it blocks all that it listens to."""

    def note_agents(self, pid: int) -> None:
        """Tell of a process that starts agents: an agent itself, or srun."""
        self._tell(f"agents={pid}")

    def note_restart(self) -> None:
        """Tell how often all ranks were started again, so that the limit outlives this supervisor."""
        self._tell("restarts=" + ",".join(map(str, self.restarts.counts)))

    def note_end(self, exit_code: int) -> None:
        """Tell that the ranks have ended, and the exit code of the run."""
        self._tell(f"end={exit_code}")

    def dismiss(self) -> None:
        """Tell that the run is reported, and close the link: from now on the keeper only waits."""
        self._tell("bye=")
        self.link.close()

    def _tell(self, word: str) -> None:
        with suppress(OSError):  # the keeper was killed; the supervisor's loop learns of it
            self.link.sendall(word.encode() + b"\n")


@dataclass(slots=True)
class SupervisorProcess:
    """A supervisor as its keeper knows it."""

    pid: int
    link: socket.socket
    began: float = field(default_factory=time.monotonic)
    was_halted: bool = False
    """Whether the keeper killed it, because a signal had stopped it for too long."""
    status: int = 0
    """Its exit code, or the negative number of the signal that ended it."""
    is_linked: bool = True
    _heard: bytes = b""

    def hear(self) -> None:
        try:
            while data := self.link.recv(4096):
                self._heard += data
            self.is_linked = False
        except BlockingIOError:
            pass
        except OSError:  # it was killed with signals of ours unread
            self.is_linked = False

    def told(self, name: str) -> list[str]:
        """Return all values that it told under a name, oldest first."""
        words = [line.partition("=") for line in self._heard.decode().split()]
        return [value for key, _, value in words if key == name]

    @property
    def is_dismissed(self) -> bool:
        return bool(self.told("bye"))

    @property
    def end(self) -> int | None:
        """The exit code of the run; None: its ranks have not ended."""
        codes = self.told("end")
        return int(codes[-1]) if codes else None

    def send(self, number: int) -> None:
        with suppress(OSError):  # it has just been killed
            self.link.send(bytes((number,)))


_COUNT_BYTES = 8
_MOST_RANKS = 8192
_LOG = re.compile(r"rank-([0-9]+)\.log")
_PORTION_BYTES = 1 << 16
_LOOK_SECONDS, _MOST_SECONDS = 0.1, 5.0


class ShownOutput:
    """The number of bytes of each rank's output that are on the console, in memory that forked processes share.

    >>> shown = ShownOutput()
    >>> shown.set(3, 100)
    >>> shown.of(3), shown.of(4)
    (100, 0)
    """

    def __init__(self) -> None:
        self._counts = mmap.mmap(-1, _MOST_RANKS * _COUNT_BYTES)

    def of(self, rank: int) -> int:
        return int.from_bytes(self._counts[rank * _COUNT_BYTES : (rank + 1) * _COUNT_BYTES], "little")

    def set(self, rank: int, num_bytes: int) -> None:
        """Note the number of bytes of a rank; a rank beyond the last counted one is left out."""
        if rank < _MOST_RANKS:
            self._counts[rank * _COUNT_BYTES : (rank + 1) * _COUNT_BYTES] = num_bytes.to_bytes(_COUNT_BYTES, "little")

    def clear(self) -> None:
        self._counts[:] = bytes(len(self._counts))

    def missing(self, logs: str, ranks: Collection[int] | None) -> dict[int, int]:
        """Return the ranks whose logs have more than the console, each with the size of its log; None: of all ranks."""
        sizes: dict[int, int] = {}
        with suppress(OSError), os.scandir(logs) as entries:
            for entry in entries:
                name = _LOG.fullmatch(entry.name)
                rank = int(name[1]) if name else _MOST_RANKS
                if rank < _MOST_RANKS and (ranks is None or rank in ranks):
                    sizes[rank] = entry.stat().st_size
        return {rank: size for rank, size in sorted(sizes.items()) if size > self.of(rank)}

    def catch_up(
        self, logs: str, ranks: Collection[int] | None, show: Callable[[int, bytes], None], *, calm_seconds: float
    ) -> None:
        """Show what is missing, once no log has grown for some time: the guard of a killed agent may still write."""
        missing: dict[int, int] = {}
        began = changed = time.monotonic()
        while (now := time.monotonic()) < changed + calm_seconds and now < began + _MOST_SECONDS:
            time.sleep(_LOOK_SECONDS)
            before, missing = missing, self.missing(logs, ranks)
            changed = changed if missing == before else now
        for rank in missing:
            with suppress(OSError), open(os.path.join(logs, f"rank-{rank}.log"), "rb") as log:
                log.seek(self.of(rank))
                while portion := log.read(_PORTION_BYTES):
                    show(rank, portion)
