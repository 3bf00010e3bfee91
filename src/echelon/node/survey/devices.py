"""Read the devices and their health, apply the visibility filters, and measure the distance to the allowed cores."""

import os
import subprocess
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ...environment import devices
from ...topology import devices as topology_devices
from ...topology import files
from ...topology.devices import distance, nearest_nic
from ...topology.node import Device as Found
from ...topology.node import Node
from .nouns import Health, Healths, SurveyedDevice, SurveyedDevices


def read(node: Node, environ: Mapping[str, str]) -> SurveyedDevices:
    """Return the devices of a node as a process with this environment sees them."""
    seen = [device.number for device in topology_devices.visible(node, environ)]
    claimed = 0 if node.devices else len(devices.visible(environ))  # a container may hide the files
    rows = tuple(_device(node, device, device.number in seen) for device in node.devices)
    return SurveyedDevices(devices=rows, visible=tuple(seen), num_claimed=claimed)


def _device(node: Node, device: Found, is_visible: bool) -> SurveyedDevice:
    nic = nearest_nic(node, device)
    return SurveyedDevice(
        number=device.number,
        vendor=device.vendor,
        model=device.model,
        pci=device.pci,
        uuid=device.uuid,
        numa=device.numa,
        memory_bytes=device.memory_bytes,
        chip=device.chip,
        is_allowed=device.is_allowed,
        is_visible=is_visible,
        distance=_nearest(node, device),
        nic=nic.name if nic else "",
    )


def _nearest(node: Node, device: Found) -> int:
    """Return the distance of the nearest allowed core; 0: unknown. One core of each NUMA domain is enough."""
    domain_of = {cpu.number: cpu.numa for cpu in node.cpus}
    if device.numa < 0:  # only local_cpus may be known, which lists single cores
        numbers = list(node.allowed)
    else:
        numbers = list({domain_of.get(number, -1): number for number in node.allowed}.values())
    distances = [distance(node, (number,), device) for number in numbers]
    return min((one for one in distances if one > 0), default=0)


TOOL_SECONDS = 8.0
_PCI = "sys/bus/pci/devices"
_KFD = "sys/class/kfd/kfd"
_THROTTLES = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")
_FIELDS = (
    "pci.bus_id", "memory.used", "ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total",
    "retired_pages.pending", "pcie.link.width.current", "pcie.link.width.max",
)  # fmt: skip
_METRICS_BYTES, _METRICS_VERSION = 120, (1, 3)  # this version on an MI250X
_THROTTLE_BITS = {
    "it is too hot": sum(1 << bit for bit in range(32, 46)),  # TEMP_GPU to VRHOT1
    "the board says that it is too hot": 1 << 46 | 1 << 47,  # PROCHOT_CPU and PROCHOT_GFX
}
_WORDS = {
    "hw_slowdown": "the hardware slows it down",
    "hw_thermal_slowdown": "it is too hot",
    "sw_thermal_slowdown": "the driver cools it",
    "hw_power_brake_slowdown": "the power supply brakes it",
}


def read_health(root: str, node: Node) -> Optional[Healths]:
    """Return the driver's health data; None without devices."""
    if not node.devices:
        return None
    if node.devices[0].vendor == "amd":
        return Healths(tuple(_amd(root, node)), "sysfs of amdgpu")
    return ask_nvidia_smi(os.environ)


def _amd(root: str, node: Node) -> List[Health]:
    users = _users(root)
    healths = []
    for address in dict.fromkeys(device.pci for device in node.devices if device.pci):
        folder = os.path.join(root, _PCI, address)
        corrected, uncorrected = _ras(os.path.join(folder, "ras"))
        healths.append(
            Health(
                pci=address,
                used_bytes=files.number(files.text(os.path.join(folder, "mem_info_vram_used"))),
                corrected=corrected,
                uncorrected=uncorrected,
                pending="",
                throttled=tuple(_throttled(os.path.join(folder, "gpu_metrics"))),
                pcie_width=files.number(files.text(os.path.join(folder, "current_link_width"))),
                pcie_width_most=files.number(files.text(os.path.join(folder, "max_link_width"))),
                processes=tuple(users.get(address, ())),
            )
        )
    return healths


def _throttled(path: str) -> List[str]:
    """Return why the firmware throttles an AMD device, from the bits that do not depend on the chip.

    struct gpu_metrics_v1_3 of the kernel's kgd_pp_interface.h ends with them; bits are in its amdgpu_smu.h.
    """
    try:
        with open(path, "rb") as file:
            table = file.read(_METRICS_BYTES)
    except OSError:
        return []
    if len(table) < _METRICS_BYTES or tuple(table[2:4]) != _METRICS_VERSION:
        return []
    bits = int.from_bytes(table[-8:], "little")
    if bits == (1 << 64) - 1:
        return []  # the firmware does not tell
    return [why for why, mask in _THROTTLE_BITS.items() if bits & mask]


def _ras(folder: str) -> Tuple[int, int]:
    """Add up the errors of all blocks; -1 without counters.

    umc_err_count holds the lines "ue: 0" and "ce: 12"
    """
    counts: Dict[str, int] = {}
    for name in files.names(folder):
        if name.endswith("_err_count"):
            for line in files.text(os.path.join(folder, name)).splitlines():
                kind, _, value = line.partition(":")
                counts[kind.strip()] = counts.get(kind.strip(), 0) + files.number(value.strip(), 0)
    return counts.get("ce", -1), counts.get("ue", -1)


def _users(root: str) -> Dict[str, List[str]]:
    """Return the processes that use memory of a device, by its PCI address."""
    address_of = {}
    for number in files.numbers(os.path.join(root, _KFD, "topology/nodes")):
        place = os.path.join(root, _KFD, "topology/nodes", str(number))
        words = dict(line.split()[:2] for line in files.text(place + "/properties").splitlines() if " " in line)
        location, domain = (files.number(words.get(key, ""), 0) for key in ("location_id", "domain"))
        if location > 0:
            slot = "%04x:%02x:%02x.%x" % (domain, location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7)
            address_of[files.text(place + "/gpu_id")] = slot
    users: Dict[str, List[str]] = {}
    for pid in files.numbers(os.path.join(root, _KFD, "proc")):
        for name in files.names(os.path.join(root, _KFD, "proc", str(pid))):
            used = files.number(files.text(os.path.join(root, _KFD, "proc", str(pid), name)), 0)
            if name.startswith("vram_") and used > 0 and name[5:] in address_of and pid != os.getpid():
                command = files.text(os.path.join(root, "proc", str(pid), "comm"))
                users.setdefault(address_of[name[5:]], []).append(("%d %s" % (pid, command)).strip())
    return users


def ask_nvidia_smi(environ: Mapping[str, str]) -> Optional[Healths]:
    """Return nvidia-smi's health data; None if it is missing or fails."""
    rows: List[List[str]] = []
    for family in ("clocks_event_reasons", "clocks_throttle_reasons"):  # drivers before 535 know only the second name
        names = [*_FIELDS, *("%s.%s" % (family, reason) for reason in _THROTTLES)]
        rows = ask_rows("--query-gpu=" + ",".join(names), environ)
        if rows:
            break
    if not rows:
        return None
    users: Dict[str, List[str]] = {}
    for row in ask_rows("--query-compute-apps=gpu_bus_id,pid,process_name", environ):
        if len(row) == 3 and row[1] != str(os.getpid()):
            users.setdefault(files.normal(row[0]), []).append("%s %s" % (row[1], os.path.basename(row[2])))
    whole = [row for row in rows if len(row) == len(_FIELDS) + len(_THROTTLES)]
    return Healths(tuple(_nvidia(row, users) for row in whole), "nvidia-smi")


def _nvidia(row: Sequence[str], users: Mapping[str, List[str]]) -> Health:
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


def ask_rows(query: str, environ: Mapping[str, str]) -> List[List[str]]:
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
