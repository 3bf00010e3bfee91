"""Are all the devices there that the job was given, and that such a node has?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted, leave_out
from echelon.node.survey.nouns import Survey
from echelon.units import size

_LEAST_SHARE = 0.9  # drivers reserve part of a device's memory


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Compare the devices with the job's request, with the machine's facts, and with each other."""
    devices = survey.devices.devices
    allowed = [device for device in devices if device.is_allowed]
    num_given = wanted.devices_by_node.get(survey.node, 0)
    kind = wanted.kind
    documented = kind.num_devices if kind is not None and wanted.whole_nodes and kind.num_devices else 0
    if num_given and not devices:
        yield Finding(
            severity="warning",
            message=f"the job has {num_given} devices, but this node sees none of them",
            evidence="no device in /sys/class/kfd, /proc/driver/nvidia or /dev",
            remedy="rocm-smi or nvidia-smi   shows whether the driver works; a container needs --rocm or --nv",
        )
    elif num_given and len(allowed) < num_given:
        yield Finding(
            severity="error",
            message=f"the job has {num_given} devices, but only {len(allowed)} of them are there",
            evidence=", ".join(device.pci for device in allowed) or "no process can open a device",
            remedy=leave_out(survey.node),
        )
    elif documented and len(devices) < documented:
        yield Finding(
            severity="error",
            message=f"{len(devices)} of {documented} devices",
            evidence=", ".join(device.pci for device in devices),
            remedy=leave_out(survey.node),
            source=kind.source if kind is not None else "",
        )
    hidden = len(allowed) - len(survey.devices.visible)
    if survey.devices.visible and hidden > 0 and wanted.ranks_per_node > len(survey.devices.visible):
        yield Finding(
            severity="error",
            message=f"{wanted.ranks_per_node} ranks, but only {len(survey.devices.visible)} of "
            f"{len(allowed)} devices are visible",
            evidence="visible: " + ",".join(map(str, survey.devices.visible)),
            remedy="unset ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES",
        )
    elif 0 < len(survey.devices.visible) < len(allowed):
        yield Finding(
            severity="note",
            message=f"{len(survey.devices.visible)} of {len(allowed)} devices are visible",
            evidence="visible: " + ",".join(map(str, survey.devices.visible)),
            remedy="unset ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES   to use all devices",
        )
    yield from _unlike(survey, wanted)


def _unlike(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report devices of another model, or with less memory than the others or than published."""
    allowed = [device for device in survey.devices.devices if device.is_allowed]
    seen = [device for device in allowed if device.memory_bytes > 0]
    models = Counter(device.model for device in allowed if device.model)
    if len(models) > 1:
        listed = ", ".join(f"{count} × {model}" for model, count in models.most_common())
        yield Finding(
            severity="warning" if wanted.in_allocation else "note",
            message=f"the devices are of several kinds: {listed}",
            evidence=", ".join(f"{device.number}: {device.model}" for device in allowed),
            remedy="each step waits for the slowest device: hide the others, or ask for a single kind",
        )
        return
    most = max((device.memory_bytes for device in seen), default=0)
    kind = wanted.kind
    documented = kind.device_memory_bytes if kind is not None and kind.device_memory_bytes else 0
    for device in seen:
        wants = max(most, documented)
        if device.memory_bytes < _LEAST_SHARE * wants:
            yield Finding(
                severity="error",
                message=f"device {device.number} has {size(device.memory_bytes)} of {size(wants)}",
                evidence=f"{device.pci} {device.model}",
                remedy=leave_out(survey.node),
                source=kind.source if kind is not None and documented >= most else "",
            )
