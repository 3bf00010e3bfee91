"""Ask nvidia-smi where its library cannot be opened: a process for each look, so it looks rarely."""

import time
from typing import Callable, Dict, List, Mapping, Optional, Sequence

from ....topology import files, pci
from ..health import ask_rows
from ..nouns import Device
from .reading import Reading

LOOK_SECONDS = 10.0
_FIELDS = (
    "pci.bus_id", "utilization.gpu", "memory.used", "memory.total", "power.draw", "clocks.sm", "clocks.max.sm",
    "temperature.gpu",
)  # fmt: skip


class NvidiaSmi:
    """The devices as nvidia-smi shows them, which does not know the load of a MIG device."""

    def __init__(
        self, devices: Sequence[Device], environ: Mapping[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._devices = devices
        self._environ = environ
        self._clock = clock
        self._due = float("-inf")

    def read(self) -> Dict[int, Reading]:
        """Return the state by device number; empty between two looks, and if nvidia-smi does not answer."""
        if self._clock() < self._due:
            return {}
        self._due = self._clock() + LOOK_SECONDS
        try:
            rows = ask_rows("--query-gpu=" + ",".join(_FIELDS), self._environ)
        except TimeoutError:
            return {}
        cards = {pci.normal(row[0]): _reading(row) for row in rows if len(row) == len(_FIELDS)}
        whole = [device for device in self._devices if not device.uuid.startswith("MIG-")]
        return {device.number: cards[device.pci] for device in whole if device.pci in cards}


def _reading(row: List[str]) -> Reading:
    percent, used, memory, clock, clock_most, celsius = (_number(row[index]) for index in (1, 2, 3, 5, 6, 7))
    return Reading(
        percent=percent if percent is not None and percent <= 100 else None,
        memory_used_bytes=used << 20 if used is not None else None,
        memory_bytes=memory << 20 if memory else None,
        power_watts=_watts(row[4]),
        clock_mhz=clock,
        clock_most_mhz=clock_most,
        temperature_celsius=celsius,
    )


def _number(word: str) -> Optional[int]:
    number = files.number(word)  # [N/A]
    return number if number >= 0 else None


def _watts(word: str) -> Optional[float]:
    try:
        return float(word)  # 61.27
    except ValueError:
        return None
