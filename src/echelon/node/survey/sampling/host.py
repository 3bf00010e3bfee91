"""Sample the cores, the memory and the network of a node."""

import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ....hardware import files
from ....hardware.reading import WORD_BITS, KeptFile, risen
from ....topology import nics as topology_nics
from ....topology import pci
from ....topology.node import Nic

_STAT_BYTES = 1 << 20  # some thousand interrupts follow the cores
_NUM_TIMES = 8  # user nice system idle iowait irq softirq steal; time of guests is part of user's
_IDLE = slice(3, 5)
_KIBIBYTE = 1024


class HostReader:
    """The files of a node: its memory is looked at in each sample, counters only when a row is asked for."""

    def __init__(self, root: str, cpus: Sequence[int], now: float) -> None:
        self._cpus = {b"cpu%d" % cpu for cpu in cpus}
        self._stat = KeptFile(os.path.join(root, "proc/stat"), _STAT_BYTES)
        self._meminfo = KeptFile(os.path.join(root, "proc/meminfo"))
        self._nics = readers(root)
        self._times = self._cpu_times()
        self._began = self._told = now
        self._memory: Tuple[Optional[int], Optional[int]] = (None, None)
        self._memory_most = 0

    def look(self) -> None:
        self._memory = self._used_memory()
        self._memory_most = max(self._memory_most, self._memory[0] or 0)

    def row(self, now: float) -> Dict[str, Any]:
        """Return the last sample, and the means since the last row; what is not known is left out.

        `now` is in seconds of a clock that is never set.
        """
        seconds, self._told = now - self._told, now
        before, self._times = self._times, self._cpu_times()
        used, whole = self._memory
        fields = {
            "seconds": round(now - self._began, 1),
            "cpus": len(self._cpus) if self._times is not None else None,
            "cpu_percent": _busy_percent(before, self._times),
            "memory_used_bytes": used,
            "memory_used_most_bytes": self._memory_most or None,
            "memory_bytes": whole,
            "nics": (rows(self._nics, seconds) if seconds > 0 else None) or None,
        }
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def sees_nothing(self) -> bool:
        return self._times is None and self._memory[1] is None and not self._nics

    def _cpu_times(self) -> Optional[Tuple[int, int]]:
        """Return the idle and the whole time of the run's cores together, in ticks of the kernel."""
        idle = whole = 0
        for line in (self._stat.read() or b"").splitlines():
            name, _, rest = line.partition(b" ")  # cpu3 4705 356 584 3699 23 23 0 0 0 0
            if not name.startswith(b"cpu"):
                break
            if name in self._cpus:
                times = _numbers(rest.split()[:_NUM_TIMES])
                whole += sum(times)
                idle += sum(times[_IDLE])
        return (idle, whole) if whole else None

    def _used_memory(self) -> Tuple[Optional[int], Optional[int]]:
        """Return the memory that is neither free nor soon to be had, and the whole memory, in bytes."""
        sizes: Dict[bytes, int] = {}
        for line in (self._meminfo.read() or b"").split(b"\n", 3)[:3]:  # MemTotal, MemFree, MemAvailable
            name, _, rest = line.partition(b":")
            words = rest.split() or [b""]
            sizes[name] = files.number(words[0].decode("ascii", "replace")) * _KIBIBYTE
        whole, available = sizes.get(b"MemTotal", 0), sizes.get(b"MemAvailable", -1)
        if whole <= 0:
            return None, None
        return (whole - available if 0 <= available <= whole else None), whole


def _numbers(words: Sequence[bytes]) -> List[int]:
    try:
        return list(map(int, words))  # a node may have two thousand of these
    except ValueError:
        return []


def _busy_percent(before: Optional[Tuple[int, int]], now: Optional[Tuple[int, int]]) -> Optional[float]:
    if before is None or now is None:
        return None
    idle, whole = now[0] - before[0], now[1] - before[1]
    return round(100 * (whole - idle) / whole, 1) if 0 <= idle <= whole and whole > 0 else None


MOST_NICS = 16  # the fastest kinds come first
_NET, _VERBS, _CXI = "sys/class/net", "sys/class/infiniband", "sys/class/cxi"
_OCTETS_OF_WORD = 4  # port_rcv_data: "number of data octets, divided by 4"
_CXI_BITS = 56
_NET_FILES = ("rx_bytes", "tx_bytes")
_PORT_FILES = ("port_rcv_data", "port_xmit_data")
_CXI_FILES = ("hni_sts_rx_ok_octets", "hni_sts_tx_ok_octets")


class _Counter:
    """A file that counts units of some bytes."""

    def __init__(self, path: str, unit_bytes: int = 1, bits: int = WORD_BITS) -> None:
        self._file = KeptFile(path)
        self._unit_bytes = unit_bytes
        self._bits = bits
        self._before = self._file.number()

    def moved_bytes(self) -> Optional[int]:
        """Return the bytes since the last call; None: not known."""
        before, self._before = self._before, self._file.number()
        rise = risen(before, self._before, self._bits)
        return rise * self._unit_bytes if rise is not None else None


class _Counters(NamedTuple):
    """The files that count what an interface receives, and what it sends."""

    received: Tuple[_Counter, ...] = ()
    sent: Tuple[_Counter, ...] = ()


class NicReader:
    """The counters of one interface."""

    def __init__(self, root: str, nic: Nic) -> None:
        self.name = nic.name
        self._counters = _counters(root, nic)

    @property
    def is_empty(self) -> bool:
        return not self._counters.received

    def moved_bytes(self) -> Tuple[Optional[int], Optional[int]]:
        """Return the bytes received and sent since the last call; None: not known."""
        return _sum(self._counters.received), _sum(self._counters.sent)


def readers(root: str) -> List[NicReader]:
    """Return a reader for each interface that is up; interfaces without a device of their own are left out."""
    up = (NicReader(root, nic) for nic in topology_nics.read(root) if nic.is_up)
    return [nic for nic in up if not nic.is_empty][:MOST_NICS]


def rows(nics: List[NicReader], seconds: float) -> List[Dict[str, Any]]:
    """Return the mean rates of the interfaces over the last `seconds`; those that are not known are left out."""
    known: List[Dict[str, Any]] = []
    for nic in nics:
        received, sent = nic.moved_bytes()
        row: Dict[str, Any] = {"nic": nic.name}
        if received is not None:
            row["in_bytes_per_second"] = round(received / seconds)
        if sent is not None:
            row["out_bytes_per_second"] = round(sent / seconds)
        if len(row) > 1:
            known.append(row)
    return known


def _sum(counters: Tuple[_Counter, ...]) -> Optional[int]:
    """Return the sum by which the counters have moved; None if the movement of a counter is not known."""
    total = 0
    for moved in [counter.moved_bytes() for counter in counters]:
        if moved is None:
            return None
        total += moved
    return total if counters else None


def _counters(root: str, nic: Nic) -> _Counters:
    """Return the files that count the traffic of an interface.

    The counters of a Slingshot or InfiniBand port have all traffic, that of its IP interface included. Those of a
    Mellanox port with Ethernet have only RDMA, which the interface's own counters lack.
    """
    if nic.kind == "slingshot" and (card := _telemetry(root, nic.pci)):
        return _pair(card, _CXI_FILES, bits=_CXI_BITS)
    plain = _pair(os.path.join(root, _NET, nic.interface, "statistics"), _NET_FILES) if nic.interface else _Counters()
    if nic.kind == "infiniband":
        ports = _ports(root, nic.name)
        return ports if ports.received else plain
    remote = _ports(root, _roce(root, nic.pci))
    return _Counters(plain.received + remote.received, plain.sent + remote.sent)


def _pair(folder: str, names: Tuple[str, str], **how: int) -> _Counters:
    paths = [os.path.join(folder, name) for name in names]
    if not os.path.exists(paths[0]):
        return _Counters()
    return _Counters((_Counter(paths[0], **how),), (_Counter(paths[1], **how),))


def _ports(root: str, name: str) -> _Counters:
    folder = os.path.join(root, _VERBS, name, "ports")
    ports = [os.path.join(folder, port, "counters") for port in (files.names(folder) if name else ())]
    pairs = [_pair(port, _PORT_FILES, unit_bytes=_OCTETS_OF_WORD) for port in ports]
    return _Counters(
        tuple(counter for pair in pairs for counter in pair.received),
        tuple(counter for pair in pairs for counter in pair.sent),
    )


def _telemetry(root: str, address: str) -> str:
    """Return the folder with the counters of the Slingshot card at this address; empty if it has none."""
    folder = os.path.join(root, _CXI)
    for name in files.names(folder):
        card = os.path.join(folder, name, "device")
        if address and pci.address_of(card) == address:
            telemetry = os.path.join(card, "telemetry")
            return telemetry if os.path.exists(os.path.join(telemetry, _CXI_FILES[0])) else ""
    return ""


def _roce(root: str, address: str) -> str:
    """Return the Mellanox verbs device at this address; empty if there is none."""
    folder = os.path.join(root, _VERBS)
    for name in files.names(folder):
        is_mellanox = files.text(os.path.join(folder, name, "hca_type")).startswith("MT")  # MT4123
        if address and is_mellanox and pci.address_of(os.path.join(folder, name, "device")) == address:
            return name
    return ""
