"""Counters that only rise, until they wrap or their driver starts anew."""

from typing import Optional, Tuple

from .reading import Reading

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
