"""Which devices a process sees, and how to let it see a single one."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from . import digits
from .errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Mapping

_KFD_NODES = "sys/class/kfd/kfd/topology/nodes"


def visible(environ: Mapping[str, str], root: str = "/") -> list[str]:
    """Return the identifiers of the devices that a process with this environment sees, in its order.

    Without device files (a container may hide them) a filter variable is trusted. With them, missing devices are left
    out, as the drivers do.
    """
    if _is_nvidia(environ, root):
        return _filtered(environ.get("CUDA_VISIBLE_DEVICES"), _nvidia(root))
    seen = _filtered(environ.get("ROCR_VISIBLE_DEVICES"), _amd(root))
    # HIP counts among the devices that ROCr leaves, and reads CUDA's variable if its own is not set.
    filter_text = environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES"))
    return _filtered(filter_text, seen)


def vendor(environ: Mapping[str, str], root: str = "/") -> str:
    """Return the vendor of the visible devices, "amd" or "nvidia"; empty without devices."""
    if not visible(environ, root):
        return ""
    return "nvidia" if _is_nvidia(environ, root) else "amd"


def only(
    environ: Mapping[str, str], local_rank: int, root: str = "/", *, may_share: bool = False
) -> dict[str, str | None]:
    """Return the variables that show a rank only its own device; None means to remove a variable.

    If each task already has a single device, every local rank takes that one. Ranks that may share devices take them in
    turns.
    """
    devices = visible(environ, root)
    if not devices:
        return {}
    if len(devices) > 1 and local_rank >= len(devices) and not may_share:
        raise DeviceError(
            f"local rank {local_rank} has no device: only {len(devices)} devices are visible ({','.join(devices)})",
            f"start at most {len(devices)} ranks on this node, or let each rank see all devices: --visible all",
        )
    device = devices[local_rank % len(devices)]
    variables: dict[str, str | None] = {**first_device(local_rank)}
    if _is_nvidia(environ, root):
        variables["CUDA_VISIBLE_DEVICES"] = device
    else:
        # Stacked filters count differently: ROCr's is the lowest layer and applies to all.
        variables["ROCR_VISIBLE_DEVICES"] = device
        variables.update(dict.fromkeys(("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")))
    return variables


def first_device(local_rank: int) -> dict[str, str]:
    """Return the variables of a rank that sees a single device: its number is 0."""
    return {"LOCAL_RANK": "0", "JAX_LOCAL_DEVICE_IDS": "0", "ECHELON_LOCAL_RANK": str(local_rank)}


def _is_nvidia(environ: Mapping[str, str], root: str) -> bool:
    """Say whether NVIDIA's filter variables apply here."""
    nvidia, amd = bool(_nvidia(root)), bool(_amd(root))
    if nvidia != amd:
        return nvidia
    # Both: a processor's own graphics is a KFD node beside an NVIDIA card. None: device files are hidden.
    amd_is_meant = "ROCR_VISIBLE_DEVICES" in environ or "HIP_VISIBLE_DEVICES" in environ
    return "CUDA_VISIBLE_DEVICES" in environ or not amd_is_meant


def _filtered(text: str | None, seen: list[str]) -> list[str]:
    """Apply a filter variable to the devices; without known devices, return the ones that it names."""
    if text is None:
        return seen
    chosen: list[str] = []
    for word in (word.strip() for word in text.split(",")):
        if word.startswith(("GPU-", "MIG-")):
            chosen.append(word)
        elif digits.is_number(word) and (not seen or int(word) < len(seen)):
            chosen.append(seen[int(word)] if seen else str(int(word)))
        else:
            break  # the drivers stop at the first missing device, at -1 and at an empty text
    return chosen if len(set(chosen)) == len(chosen) else []  # CUDA shows no device if one is named twice


def _nvidia(root: str) -> list[str]:
    folder = os.path.join(root, "dev")
    names = [name for name in _names(folder) if name.startswith("nvidia") and digits.is_number(name[6:])]
    count = sum(_is_character_device(os.path.join(folder, name)) for name in names)
    if count == 0:
        # Before the first use after boot, device files may be missing, but the driver knows its cards.
        count = len(_names(os.path.join(root, "proc/driver/nvidia/gpus")))
    return [str(index) for index in range(count)]


def _is_character_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def _amd(root: str) -> list[str]:
    folder = os.path.join(root, _KFD_NODES)
    nodes = sorted((name for name in _names(folder) if digits.is_number(name)), key=int)
    devices = [node for node in nodes if _is_device(os.path.join(folder, node))]
    return [str(index) for index in range(len(devices))]


def _is_device(node: str) -> bool:
    """Say whether a KFD node is a device; the files of a node that the cgroup hides are empty or unreadable."""
    lines = _text(os.path.join(node, "properties")).splitlines()
    counts = [digits.whole(line.split()[1]) for line in lines if line.startswith("simd_count ")]
    has_number = _text(os.path.join(node, "gpu_id"), missing="unknown").strip() not in ("", "0")
    return has_number and any(counts)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _text(path: str, missing: str = "") -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return missing
    except OSError:
        return ""
