"""Sample NVIDIA's devices by its library through ctypes.

Only the lookout may do so: a process that has opened the driver cannot fork ranks.
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional

from .. import files
from ..reading import HARDWARE, POWER_BRAKE, POWER_CAP, THERMAL, Reading

LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
_SM_CLOCK, _CORE_SENSOR = 1, 0  # NVML_CLOCK_SM, NVML_TEMPERATURE_GPU
_MILLI = 1000
_ENERGY_UNIT_JOULES = 1e-3
# nvmlClocksEventReasons; the first bit of hardware slowdown comes with one of the two after it
_SW_POWER_CAP, _HW_SLOWDOWN, _SW_THERMAL, _HW_THERMAL, _HW_POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _PciInfo(ctypes.Structure):
    _fields_ = [
        ("bus_id_legacy", ctypes.c_char * 16),
        *((name, ctypes.c_uint) for name in ("domain", "bus", "device", "pci_device_id", "pci_subsystem_id")),
        ("bus_id", ctypes.c_char * 32),
    ]


class Nvml:
    """The library, which is started; a question that a device does not answer has the answer None."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handles = self._by_address() if self._call("nvmlInit_v2") else {}

    def reader(self, address: str, uuid: str) -> Optional["NvidiaReader"]:
        """Return the reader of the device at a PCI address; None if the library does not show it."""
        card = self._handles.get(address)
        if card is None:
            return None
        part = self._part(uuid) if uuid.startswith("MIG-") else None
        return NvidiaReader(self, card, part, is_whole=not uuid.startswith("MIG-"))

    def _by_address(self) -> dict[str, Any]:
        count = self.whole("nvmlDeviceGetCount_v2") or 0
        handles = {}
        for index in range(count):
            handle, place = ctypes.c_void_p(), _PciInfo()
            if self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle)) and self._call(
                "nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(place)
            ):
                handles[files.normal(place.bus_id.decode("ascii", "replace"))] = handle
        return handles

    def _part(self, uuid: str) -> Any | None:
        handle = ctypes.c_void_p()
        is_there = self._call("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid.encode()), ctypes.byref(handle))
        return handle if is_there else None

    def _call(self, name: str, *arguments: Any) -> bool:
        """Say whether a function answers; an older library lacks some."""
        try:
            return bool(getattr(self._library, name)(*arguments) == _SUCCESS)
        except AttributeError:
            return False

    def whole(self, name: str, *arguments: Any) -> int | None:
        """Return the unsigned int that a function writes."""
        answer = ctypes.c_uint()
        return answer.value if self._call(name, *arguments, ctypes.byref(answer)) else None

    def long(self, name: str, handle: Any) -> int | None:
        """Return the unsigned long long that a function writes."""
        answer = ctypes.c_ulonglong()
        return answer.value if self._call(name, handle, ctypes.byref(answer)) else None

    def percent(self, handle: Any) -> int | None:
        """Return how busy a card is; a card that is divided by MIG does not tell."""
        answer = _Utilization()
        is_told = self._call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(answer))
        return answer.gpu if is_told and answer.gpu <= 100 else None

    def memory(self, handle: Any) -> tuple[int | None, int | None]:
        """Return the used and the whole memory in bytes."""
        answer = _Memory()
        is_told = self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(answer))
        return (answer.used, answer.total) if is_told and answer.total else (None, None)


class NvidiaReader:
    """One device: a card, or a part of one."""

    def __init__(self, library: Nvml, card: Any, part: Any | None, *, is_whole: bool) -> None:
        self._library = library
        self._card = card
        self._memory_of = card if is_whole else part
        self._is_whole = is_whole
        self._clock_most_mhz = library.whole("nvmlDeviceGetMaxClockInfo", card, ctypes.c_int(_SM_CLOCK))

    def read(self) -> Reading:
        """Return the present state; a part of a card has no load, power and energy of its own."""
        library, card = self._library, self._card
        used, whole = library.memory(self._memory_of) if self._memory_of is not None else (None, None)
        milliwatts = library.whole("nvmlDeviceGetPowerUsage", card) if self._is_whole else None
        return Reading(
            percent=library.percent(card) if self._is_whole else None,
            memory_used_bytes=used,
            memory_bytes=whole,
            power_watts=milliwatts / _MILLI if milliwatts is not None else None,
            energy_count=library.long("nvmlDeviceGetTotalEnergyConsumption", card) if self._is_whole else None,
            energy_unit_joules=_ENERGY_UNIT_JOULES,
            clock_mhz=library.whole("nvmlDeviceGetClockInfo", card, ctypes.c_int(_SM_CLOCK)),
            clock_most_mhz=self._clock_most_mhz,
            temperature_celsius=library.whole("nvmlDeviceGetTemperature", card, ctypes.c_int(_CORE_SENSOR)),
            throttled=self._throttled(),
        )

    def _throttled(self) -> tuple[str, ...] | None:
        bits = self._library.long("nvmlDeviceGetCurrentClocksEventReasons", self._card)
        if bits is None:  # a library before version 535
            bits = self._library.long("nvmlDeviceGetCurrentClocksThrottleReasons", self._card)
        return reasons(bits) if bits is not None else None


def reasons(bits: int) -> tuple[str, ...]:
    """Return the words for the bits of nvmlClocksEventReasons that hold a clock down."""
    words: list[str] = []
    if bits & (_SW_THERMAL | _HW_THERMAL):
        words.append(THERMAL)
    if bits & _SW_POWER_CAP:
        words.append(POWER_CAP)
    if bits & _HW_POWER_BRAKE:
        words.append(POWER_BRAKE)
    if bits & _HW_SLOWDOWN and not bits & (_HW_THERMAL | _HW_POWER_BRAKE):
        words.append(HARDWARE)
    return tuple(words)


def load() -> Nvml | None:
    """Return the library, started; None if this node has no such library."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    return Nvml(library)
