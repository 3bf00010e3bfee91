"""What a device's driver says at one moment: files that are read again and again, and counters that only rise."""

import os
from typing import NamedTuple, Optional, Tuple

from ....topology import files

THERMAL = "thermal"
POWER_CAP = "power cap"
POWER_BRAKE = "power brake"
HARDWARE = "hardware"


class Reading(NamedTuple):
    """The state of a device; None: the driver does not tell."""

    percent: Optional[int] = None  # the part of the time in which the device worked, 0 to 100
    memory_used_bytes: Optional[int] = None
    memory_bytes: Optional[int] = None
    power_watts: Optional[float] = None
    energy_count: Optional[int] = None  # a counter that wraps at 2^64
    energy_unit_joules: float = 1.0  # what the counter counts
    clock_mhz: Optional[int] = None  # of the cores that compute
    clock_most_mhz: Optional[int] = None
    temperature_celsius: Optional[int] = None
    throttled: Optional[Tuple[str, ...]] = None  # why the clock is held down; empty: it is not

    @property
    def is_empty(self) -> bool:
        """Say whether the driver tells nothing of the present."""
        return all(
            value is None
            for value in (
                self.percent,
                self.memory_used_bytes,
                self.power_watts,
                self.energy_count,
                self.clock_mhz,
                self.temperature_celsius,
                self.throttled,
            )
        )


NOTHING = Reading()


WORD_BITS = 64
LONGEST_GAP_SECONDS = 30.0  # over a longer gap, power is not taken for constant


def risen(before: Optional[int], now: Optional[int], bits: int = WORD_BITS) -> Optional[int]:
    """Return how far a counter of `bits` bits has risen; None if that is not known.

    A counter that is lower than before has wrapped if that is a rise of less than half of its range. Otherwise it was
    set back, and nobody knows what it had counted until then.
    """
    if before is None or now is None:
        return None
    rise = (now - before) % (1 << bits)
    return rise if now >= before or rise < 1 << (bits - 1) else None


class Energy:
    """The energy of a device since the first sample: from its counter, or else its power over time.

    A counter that stands still while the device draws power is none.
    """

    def __init__(self) -> None:
        self._counted = 0.0
        self._in_gaps = 0.0  # by power, where the counter was not known
        self._by_power = 0.0
        self._is_by_power = False
        self._is_in_gaps = False
        self._last: Optional[Tuple[float, Reading]] = None

    def note(self, now: float, reading: Reading) -> None:
        """Add the energy since the last sample; `now` in seconds."""
        last, self._last = self._last, (now, reading)
        if last is None:
            return
        counted = risen(last[1].energy_count, reading.energy_count)
        drawn = _drawn(last[1].power_watts, reading.power_watts, now - last[0])
        self._counted += (counted or 0) * reading.energy_unit_joules
        if drawn is not None:
            self._by_power += drawn
            self._is_by_power = True
            if counted is None:
                self._in_gaps += drawn
                self._is_in_gaps = True

    @property
    def joules(self) -> float:
        """Return the energy; 0 if it is not known."""
        return self._counted + self._in_gaps if self._counted else self._by_power

    @property
    def source(self) -> str:
        """Return where the energy is from: "counter", "power", "counter and power"; empty: it is not known."""
        if self._counted:
            return "counter and power" if self._is_in_gaps else "counter"
        return "power" if self._is_by_power else ""


def _drawn(before: Optional[float], now: Optional[float], seconds: float) -> Optional[float]:
    """Return the energy by the mean of two powers, in joules; None if one is missing, or too much time is between."""
    if before is None or now is None or seconds > LONGEST_GAP_SECONDS:
        return None
    return (before + now) / 2 * seconds


_MOST_BYTES = 4096


class KeptFile:
    """A file that stays open: a sample is one call of the kernel. A file that cannot be read is tried again."""

    def __init__(self, path: str, most_bytes: int = _MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._descriptor = -1

    def read(self) -> Optional[bytes]:
        """Return the content; None if the file is missing, empty, or its driver refuses."""
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            return os.pread(self._descriptor, self._most_bytes, 0) or None
        except OSError:
            self.close()
            return None

    def number(self) -> Optional[int]:
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
