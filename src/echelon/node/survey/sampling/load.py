"""Sum up the samples of a device."""

from typing import Any, Dict, Optional

from .counters import Energy
from .reading import NOTHING, Reading

SPAN_SECONDS = 10


class Load:
    """What was seen of one device so far."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._last = NOTHING
        self._spans = 0
        self._first: Optional[float] = None
        self._last_span = -1
        self._samples = 0
        self._sum = 0
        self._most = 0
        self._memory_most = 0
        self._energy = Energy()
        self._throttle_samples = 0
        self._throttled: Dict[str, int] = {}
        self._throttled_clocks = 0
        self._throttled_clock_sum = 0

    def note(self, now: float, reading: Reading) -> None:
        """Add a sample that was taken at this moment, in seconds of a clock that is never set."""
        self._last = reading
        self._energy.note(now, reading)
        self._memory_most = max(self._memory_most, reading.memory_used_bytes or 0)
        if reading.percent is not None:
            self._samples += 1
            self._sum += reading.percent
            self._most = max(self._most, reading.percent)
            self._count_span(now)
        if reading.throttled is not None:
            self._throttle_samples += 1
            for reason in reading.throttled:
                self._throttled[reason] = self._throttled.get(reason, 0) + 1
            if reading.throttled and reading.clock_mhz is not None:
                self._throttled_clocks += 1
                self._throttled_clock_sum += reading.clock_mhz

    def _count_span(self, now: float) -> None:
        self._first = now if self._first is None else self._first
        span = int((now - self._first) // SPAN_SECONDS)
        self._spans += span != self._last_span
        self._last_span = span

    @property
    def has_percent(self) -> bool:
        """Say whether the driver has told how busy the device is."""
        return self._samples > 0

    def row(self) -> Dict[str, Any]:
        """Return what was seen, with the units in the keys; what the driver does not tell is left out."""
        last = self._last
        fields = {
            **self._busy(),
            "now": last.percent,
            "memory_used_bytes": last.memory_used_bytes,
            "memory_used_most_bytes": self._memory_most or last.memory_used_bytes,
            "memory_bytes": last.memory_bytes,
            "power_watts": round(last.power_watts, 1) if last.power_watts is not None else None,
            "energy_joules": round(self._energy.joules) if self._energy.source else None,
            "energy_from": self._energy.source or None,
            "clock_mhz": last.clock_mhz,
            "clock_most_mhz": last.clock_most_mhz,
            "temperature_celsius": last.temperature_celsius,
            "throttled": list(last.throttled) if last.throttled is not None else None,
            **self._held_down(),
        }
        return {"device": self._number, **{name: value for name, value in fields.items() if value is not None}}

    def _busy(self) -> Dict[str, Any]:
        if not self._samples:
            return {}
        return {"looks": self._spans, "mean": round(self._sum / self._samples, 1), "most": self._most}

    def _held_down(self) -> Dict[str, Any]:
        """Return the share of the samples for each reason, and the mean clock meanwhile."""
        if not self._throttled:
            return {}
        shares = {word: round(100 * count / self._throttle_samples, 1) for word, count in self._throttled.items()}
        mean = round(self._throttled_clock_sum / self._throttled_clocks) if self._throttled_clocks else None
        return {"throttled_percent": shares, "throttled_clock_mhz": mean}
