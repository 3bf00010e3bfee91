"""Which devices a process sees, and how to let it see a single one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..hardware import vendors
from ..hardware.vendor import Vendor
from . import digits
from .errors import DeviceError


def visible(environ: Mapping[str, str], root: str = "/") -> list[str]:
    """Return the identifiers of the devices that a process with this environment sees, in its order.

    Without device files (a container may hide them) a filter variable is trusted. With them, missing devices are left
    out, as the drivers do.
    """
    return _seen(environ, root)[1]


def vendor(environ: Mapping[str, str], root: str = "/") -> str:
    """Return the name of the visible devices' vendor; empty without devices."""
    seen, devices = _seen(environ, root)
    return seen.name if devices else ""


def only(
    environ: Mapping[str, str], local_rank: int, root: str = "/", *, may_share: bool = False
) -> dict[str, str | None]:
    """Return the variables that show a rank only its own device; None means to remove a variable.

    If each task already has a single device, every local rank takes that one. Ranks that may share devices take them in
    turns.
    """
    vendor, devices = _seen(environ, root)
    if not devices:
        return {}
    if len(devices) > 1 and local_rank >= len(devices) and not may_share:
        raise DeviceError(
            f"local rank {local_rank} has no device: only {len(devices)} devices are visible ({','.join(devices)})",
            f"start at most {len(devices)} ranks on this node, or let each rank see all devices: --visible all",
        )
    return {**first_device(local_rank), **_filters(vendor, [devices[local_rank % len(devices)]])}


def some(environ: Mapping[str, str], first: int, number: int, root: str = "/") -> dict[str, str | None]:
    """Return the variables that show so many of the visible devices, from the first one on; None removes a variable."""
    vendor, devices = _seen(environ, root)
    if first + number > len(devices):
        raise DeviceError(
            f"devices {first} to {first + number - 1} are asked for, but only {len(devices)} are visible here"
            f" ({','.join(devices)})",
            "start it where all nodes show the same number of devices",
        )
    return _filters(vendor, devices[first : first + number])


def _filters(vendor: Vendor, devices: Sequence[str]) -> dict[str, str | None]:
    # Stacked filters count differently: the lowest layer applies to all.
    lowest, *others = vendor.variables
    return {lowest: ",".join(devices), **dict.fromkeys(others)}


def first_device(local_rank: int) -> dict[str, str]:
    """Return the variables of a rank that sees a single device: its number is 0."""
    return {"LOCAL_RANK": "0", "JAX_LOCAL_DEVICE_IDS": "0", "ECHELON_LOCAL_RANK": str(local_rank)}


def _seen(environ: Mapping[str, str], root: str) -> tuple[Vendor, list[str]]:
    """Return the vendor whose devices count here, and the devices that its filter variables leave."""
    counts = {vendor: vendor.count(root) for vendor in vendors.LISTED}
    vendor = vendors.meant(environ, [vendor for vendor, count in counts.items() if count])
    seen = [str(number) for number in range(counts[vendor])]
    for text in vendor.filter_texts(environ):
        seen = _filtered(text, seen)
    return vendor, seen


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
