"""Which of the node's devices a process sees, in its order."""

from typing import List, Mapping, Optional, Sequence

from ..environment import digits
from .node import Device, Node


def visible(node: Node, environ: Mapping[str, str]) -> List[Device]:
    """Return the devices in the order in which a framework of a process with this environment counts them.

    Indices count what the cgroup allows. NVIDIA's are those of CUDA_DEVICE_ORDER=PCI_BUS_ID, which is also CUDA's own
    order where all cards are of one model.
    """
    seen = [device for device in node.devices if device.is_allowed]
    if any(device.vendor == "nvidia" for device in seen):
        return _filtered(environ.get("CUDA_VISIBLE_DEVICES"), seen)
    seen = _filtered(environ.get("ROCR_VISIBLE_DEVICES"), seen)
    # HIP counts in what ROCr leaves over, and reads CUDA's name where its own is not set.
    return _filtered(environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES")), seen)


def _filtered(text: Optional[str], seen: Sequence[Device]) -> List[Device]:
    if text is None:
        return list(seen)
    chosen: List[Device] = []
    for word in text.split(","):
        device = _named(word.strip(), seen)
        if device is None:
            break  # the drivers stop at the first one that is not there; -1 and an empty text are such
        chosen.append(device)
    return chosen if len({device.number for device in chosen}) == len(chosen) else []  # CUDA shows none if one is twice


def _named(word: str, seen: Sequence[Device]) -> Optional[Device]:
    if word.startswith(("GPU-", "MIG-")):
        # CUDA takes as much of an identifier as makes it unique.
        found = [device for device in seen if device.uuid.lower().startswith(word.lower())]
        return found[0] if len(found) == 1 else None
    if digits.whole(word, len(seen)) < len(seen):
        return seen[int(word)]
    return None
