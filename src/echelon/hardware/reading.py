"""What a device's driver says at one moment: files that are read again and again, and counters that only rise."""

from __future__ import annotations

import os
from typing import NamedTuple

from . import files

THERMAL = "thermal"
POWER_CAP = "power cap"
POWER_BRAKE = "power brake"
HARDWARE = "hardware"


class Reading(NamedTuple):
    """The state of a device; None: the driver does not tell."""

    percent: int | None = None  # the part of the time in which the device worked, 0 to 100
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    power_watts: float | None = None
    energy_count: int | None = None  # a counter that wraps at 2^64
    energy_unit_joules: float = 1.0  # what the counter counts
    clock_mhz: int | None = None  # of the cores that compute
    clock_most_mhz: int | None = None
    temperature_celsius: int | None = None
    throttled: tuple[str, ...] | None = None  # why the clock is held down; empty: it is not

    @property
    def is_empty(self) -> bool:
        """Say whether the driver tells nothing of the present."""
        present = (self.percent, self.memory_used_bytes, self.power_watts, self.energy_count, self.clock_mhz)
        return all(value is None for value in (*present, self.temperature_celsius, self.throttled))


NOTHING = Reading()


WORD_BITS = 64


def risen(before: int | None, now: int | None, bits: int = WORD_BITS) -> int | None:
    """Return how far a counter of `bits` bits has risen; None if that is not known.

    A counter that is lower than before has wrapped if that is a rise of less than half of its range. Otherwise it was
    set back, and nobody knows what it had counted until then.
    """
    if before is None or now is None:
        return None
    rise = (now - before) % (1 << bits)
    return rise if now >= before or rise < 1 << (bits - 1) else None


_MOST_BYTES = 4096


class KeptFile:
    """A file that stays open: a sample is one call of the kernel. A file that cannot be read is tried again."""

    def __init__(self, path: str, most_bytes: int = _MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._descriptor = -1

    def read(self) -> bytes | None:
        """Return the content; None if the file is missing, empty, or its driver refuses."""
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            return os.pread(self._descriptor, self._most_bytes, 0) or None
        except OSError:
            self.close()
            return None

    def number(self) -> int | None:
        """Return the number in the file; None if there is none, or if it is negative."""
        content = self.read()
        if content is None:
            return None
        # 1234   or, in Slingshot's counters, 1234@1700000000.000000000
        number = files.number(content.partition(b"@")[0].decode("ascii", "replace").strip())
        return number if number >= 0 else None

    def close(self) -> None:
        """Close the file; the next reading opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
