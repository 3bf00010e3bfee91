"""Sample a node: all its devices and the host."""

import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ....hardware import vendors
from ....hardware.reading import NOTHING, Reading, risen
from ....topology.cpus import parse_cpu_list
from ..nouns import Survey, SurveyedDevice
from .host import HostReader


class Sampler:
    """What was seen of a node so far."""

    def __init__(self, root: str, survey: Survey, environ: Mapping[str, str], now: float) -> None:
        devices = [device for device in survey.devices.devices if device.is_visible]
        self._read = vendors.of(devices).readings(root, devices, environ)
        self._packages = Packages(devices)
        self._loads: Dict[int, Load] = {}
        self._host = HostReader(root, _cpus(root, survey), now)
        self.look(now)

    def look(self, now: float) -> None:
        """Take a sample; `now` is in seconds of a clock that is never set."""
        for number, reading in self._packages.count_once(self._read()).items():
            if number in self._loads or not reading.is_empty:
                self._loads.setdefault(number, Load(number)).note(now, reading)
        self._host.look()

    @property
    def sees_nothing(self) -> bool:
        """Say whether this node shows neither a device nor itself."""
        return not self._loads and self._host.sees_nothing

    def message(self, now: float) -> Dict[str, Any]:
        """Return what was seen: `devices`, each with its load, and `host`, with the devices whose load is not told."""
        rows = [(load.has_percent, load.row()) for _, load in sorted(self._loads.items())]
        host = self._host.row(now)
        silent = [row for has_percent, row in rows if not has_percent]
        return {
            "devices": [row for has_percent, row in rows if has_percent],
            "host": {**host, "devices": silent} if silent else host,
        }


def _cpus(root: str, survey: Survey) -> List[int]:
    allowed = parse_cpu_list(survey.cores.allowed)
    return list(allowed) or (sorted(os.sched_getaffinity(0)) if os.path.realpath(root) == "/" else [])


LONGEST_GAP_SECONDS = 30.0  # over a longer gap, power is not taken for constant


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
            self._first = now if self._first is None else self._first
            span = int((now - self._first) // SPAN_SECONDS)
            self._spans += span != self._last_span
            self._last_span = span
        if reading.throttled is not None:
            self._throttle_samples += 1
            for reason in reading.throttled:
                self._throttled[reason] = self._throttled.get(reason, 0) + 1
            if reading.throttled and reading.clock_mhz is not None:
                self._throttled_clocks += 1
                self._throttled_clock_sum += reading.clock_mhz

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


class Packages:
    """The devices by package: the first one that shows power or energy shows that of the package, the others none.

    The value is that of the whole package, also if another job uses its other device.
    """

    def __init__(self, devices: Sequence[SurveyedDevice]) -> None:
        self._package_of = {device.number: device.chip for device in devices}
        self._owner_of: Dict[int, int] = {}

    def count_once(self, readings: Mapping[int, Reading]) -> Dict[int, Reading]:
        """Return the readings, without the power and the energy that another device shows already."""
        counted = {}
        for number in sorted(readings):
            reading, package = readings[number], self._package_of.get(number, number)
            if reading.power_watts is not None or reading.energy_count is not None:
                owner = self._owner_of.setdefault(package, number)
                if owner != number:
                    reading = reading._replace(power_watts=None, energy_count=None)
            counted[number] = reading
        return counted
