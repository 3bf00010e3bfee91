"""What a device's driver says at one moment."""

from typing import NamedTuple, Optional, Tuple

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
