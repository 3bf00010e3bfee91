"""Read the devices, apply the visibility filters, and measure the distance to the allowed cores."""

from typing import Mapping

from ...environment import devices
from ...hardware.answers import Device as Found
from ...topology import devices as topology_devices
from ...topology.devices import distance, nearest_nic
from ...topology.node import Node
from .nouns import SurveyedDevice, SurveyedDevices


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
