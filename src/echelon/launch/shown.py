"""What of the ranks' output is on the console, also for the next supervisor; logs have what is missing there."""

from __future__ import annotations

import mmap
import os
import re
import time
from collections.abc import Callable, Collection
from contextlib import suppress

_COUNT_BYTES = 8
_MOST_RANKS = 8192
_LOG = re.compile(r"rank-([0-9]+)\.log")
_PORTION_BYTES = 1 << 16
_LOOK_SECONDS, _MOST_SECONDS = 0.1, 5.0


class Shown:
    """The number of bytes of each rank's output that are on the console, in memory that forked processes share.

    >>> shown = Shown()
    >>> shown.set(3, 100)
    >>> shown.of(3), shown.of(4)
    (100, 0)
    """

    def __init__(self) -> None:
        self._counts = mmap.mmap(-1, _MOST_RANKS * _COUNT_BYTES)

    def of(self, rank: int) -> int:
        """Return the number of bytes of a rank."""
        return int.from_bytes(self._counts[rank * _COUNT_BYTES : (rank + 1) * _COUNT_BYTES], "little")

    def set(self, rank: int, num_bytes: int) -> None:
        """Note the number of bytes of a rank; a rank beyond the last counted one is left out."""
        if rank < _MOST_RANKS:
            self._counts[rank * _COUNT_BYTES : (rank + 1) * _COUNT_BYTES] = num_bytes.to_bytes(_COUNT_BYTES, "little")

    def clear(self) -> None:
        """Begin to count for a new attempt."""
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
