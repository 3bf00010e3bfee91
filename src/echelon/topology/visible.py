"""Apply the visibility filters of a process to the node's devices."""

from typing import List, Mapping, Optional, Sequence

from ..environment import digits
from .node import Device, Node


def visible(node: Node, environ: Mapping[str, str]) -> List[Device]:
    """Return the devices in the order in which a framework with this environment counts them.

    Indices count the devices that the cgroup allows. NVIDIA's indices are those of CUDA_DEVICE_ORDER=PCI_BUS_ID, which
    is also CUDA's default order if all cards are of one model.
    """
    seen = [device for device in node.devices if device.is_allowed]
    if any(device.vendor == "nvidia" for device in seen):
        return _filtered(environ.get("CUDA_VISIBLE_DEVICES"), seen)
    seen = _filtered(environ.get("ROCR_VISIBLE_DEVICES"), seen)
    # HIP counts among the devices that ROCr leaves, and reads CUDA's variable if its own is not set.
    return _filtered(environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES")), seen)


def _filtered(text: Optional[str], seen: Sequence[Device]) -> List[Device]:
    if text is None:
        return list(seen)
    chosen: List[Device] = []
    for word in text.split(","):
        device = _named(word.strip(), seen)
        if device is None:
            break  # the drivers stop at the first missing device, at -1 and at an empty text
        chosen.append(device)
    return chosen if len({device.number for device in chosen}) == len(chosen) else []  # CUDA shows none for duplicates


def _named(word: str, seen: Sequence[Device]) -> Optional[Device]:
    if word.startswith(("GPU-", "MIG-")):
        # CUDA accepts a unique prefix of an identifier.
        matches = [device for device in seen if device.uuid.lower().startswith(word.lower())]
        return matches[0] if len(matches) == 1 else None
    if digits.whole(word, len(seen)) < len(seen):
        return seen[int(word)]
    return None
