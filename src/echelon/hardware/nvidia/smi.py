"""Ask nvidia-smi for the health of NVIDIA's devices, and for their load where NVML cannot be opened."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from .. import files
from ..answers import Health, Healths, Sampled
from ..reading import Reading

TOOL_SECONDS = 8.0
_THROTTLES = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")
_HEALTH_FIELDS = (
    "pci.bus_id", "memory.used", "ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total",
    "retired_pages.pending", "pcie.link.width.current", "pcie.link.width.max",
)  # fmt: skip
_WORDS = {
    "hw_slowdown": "the hardware slows it down",
    "hw_thermal_slowdown": "it is too hot",
    "sw_thermal_slowdown": "the driver cools it",
    "hw_power_brake_slowdown": "the power supply brakes it",
}


def read_health(environ: Mapping[str, str]) -> Healths | None:
    """Return nvidia-smi's health data; None if it is missing or fails."""
    rows: list[list[str]] = []
    for family in ("clocks_event_reasons", "clocks_throttle_reasons"):  # drivers before 535 know only the second name
        names = [*_HEALTH_FIELDS, *("%s.%s" % (family, reason) for reason in _THROTTLES)]
        rows = ask_rows("--query-gpu=" + ",".join(names), environ)
        if rows:
            break
    if not rows:
        return None
    users: dict[str, list[str]] = {}
    for row in ask_rows("--query-compute-apps=gpu_bus_id,pid,process_name", environ):
        if len(row) == 3 and row[1] != str(os.getpid()):
            users.setdefault(files.normal(row[0]), []).append("%s %s" % (row[1], os.path.basename(row[2])))
    whole = [row for row in rows if len(row) == len(_HEALTH_FIELDS) + len(_THROTTLES)]
    return Healths(tuple(_health(row, users) for row in whole), "nvidia-smi")


def _health(row: Sequence[str], users: Mapping[str, list[str]]) -> Health:
    address = files.normal(row[0])
    mebibytes = files.number(row[1])
    return Health(
        pci=address,
        used_bytes=mebibytes << 20 if mebibytes >= 0 else -1,
        corrected=files.number(row[2]),
        uncorrected=files.number(row[3]),
        pending="pages of its memory wait to be retired" if row[4] == "Yes" else "",
        throttled=tuple(_WORDS[reason] for index, reason in enumerate(_THROTTLES, 7) if row[index] == "Active"),
        pcie_width=files.number(row[5]),
        pcie_width_most=files.number(row[6]),
        processes=tuple(users.get(address, ())),
    )


def ask_rows(query: str, environ: Mapping[str, str]) -> list[list[str]]:
    """Return the rows of nvidia-smi's answer; nothing if it is missing or fails."""
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TOOL_SECONDS,
            env=dict(environ),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError("nvidia-smi did not answer within %g s" % TOOL_SECONDS) from None
    except OSError:
        return []  # nvidia-smi is not installed
    if done.returncode != 0:
        return []
    lines = os.fsdecode(done.stdout).splitlines()
    return [[word.strip() for word in line.split(",")] for line in lines if line.strip()]


LOOK_SECONDS = 10.0
_FIELDS = (
    "pci.bus_id", "utilization.gpu", "memory.used", "memory.total", "power.draw", "clocks.sm", "clocks.max.sm",
    "temperature.gpu",
)  # fmt: skip


class NvidiaSmi:
    """The devices as nvidia-smi shows them, which does not know the load of a MIG device."""

    def __init__(
        self, devices: Sequence[Sampled], environ: Mapping[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._devices, self._environ, self._clock = devices, environ, clock
        self._due = float("-inf")

    def read(self) -> dict[int, Reading]:
        """Return the state by device number; empty between two looks, and if nvidia-smi does not answer."""
        if self._clock() < self._due:
            return {}
        self._due = self._clock() + LOOK_SECONDS
        try:
            rows = ask_rows("--query-gpu=" + ",".join(_FIELDS), self._environ)
        except TimeoutError:
            return {}
        cards = {files.normal(row[0]): _reading(row) for row in rows if len(row) == len(_FIELDS)}
        whole = [device for device in self._devices if not device.uuid.startswith("MIG-")]
        return {device.number: cards[device.pci] for device in whole if device.pci in cards}


def _reading(row: list[str]) -> Reading:
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


def _number(word: str) -> int | None:
    number = files.number(word)  # [N/A]
    return number if number >= 0 else None


def _watts(word: str) -> float | None:
    try:
        return float(word)  # 61.27
    except ValueError:
        return None
