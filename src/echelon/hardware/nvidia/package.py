"""Read facts that only NVML knows, through the package nvidia-ml-py if it is installed."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import files

_MOST_LINKS = 36  # the highest NVML_NVLINK_MAX_LINKS so far


class Instance(NamedTuple):
    """A MIG device: a slice of a card."""

    uuid: str
    profile: str  # "1g.5gb"; empty: not known
    memory_bytes: int
    gpu_instance: int
    compute_instance: int


class Card(NamedTuple):
    """A card as NVML shows it."""

    model: str
    uuid: str
    memory_bytes: int
    instances: tuple[Instance, ...]
    num_links_to: dict[str, int]  # by the PCI address of a card, or "switch"


def module() -> Any | None:
    from importlib import import_module

    try:
        return import_module("pynvml")
    except ImportError:
        return None


def read(library: Any) -> dict[str, Card]:
    """Return the cards of NVML by PCI address; empty if its library or driver does not answer."""
    try:
        library.nvmlInit()
    except library.NVMLError:
        return {}
    try:
        handles = [_ask(library, "nvmlDeviceGetHandleByIndex", index) for index in range(_count(library))]
        cards = {_address(library, handle): _card(library, handle) for handle in handles if handle is not None}
        return {address: card for address, card in cards.items() if address}
    finally:
        _ask(library, "nvmlShutdown")  # device files must not stay open: ranks are forked


def _count(library: Any) -> int:
    return _ask(library, "nvmlDeviceGetCount") or 0


def _ask(library: Any, name: str, *arguments: Any) -> Any:
    """Return an answer of NVML, or None if the card, the driver or the package does not support the question."""
    try:
        return getattr(library, name)(*arguments)
    except (library.NVMLError, AttributeError):
        return None


def _text(value: Any) -> str:
    # Versions before 12 return bytes.
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _address(library: Any, handle: Any) -> str:
    place = _ask(library, "nvmlDeviceGetPciInfo", handle)
    return files.normal(_text(place.busId)) if place is not None else ""


def _card(library: Any, handle: Any) -> Card:
    return Card(
        model=_text(_ask(library, "nvmlDeviceGetName", handle)),
        uuid=_text(_ask(library, "nvmlDeviceGetUUID", handle)),
        memory_bytes=_memory_bytes(library, handle),
        instances=tuple(_instances(library, handle)),
        num_links_to=_links(library, handle),
    )


def _memory_bytes(library: Any, handle: Any) -> int:
    memory = _ask(library, "nvmlDeviceGetMemoryInfo", handle)
    return int(memory.total) if memory is not None else 0


def _instances(library: Any, handle: Any) -> list[Instance]:
    mode = _ask(library, "nvmlDeviceGetMigMode", handle)
    if not mode or mode[0] != 1:
        return []
    most = _ask(library, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
    instances = [_ask(library, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index) for index in range(most)]
    return [_instance(library, instance) for instance in instances if instance is not None]


def _instance(library: Any, handle: Any) -> Instance:
    name = _text(_ask(library, "nvmlDeviceGetName", handle))  # NVIDIA A100-SXM4-40GB MIG 1g.5gb
    return Instance(
        uuid=_text(_ask(library, "nvmlDeviceGetUUID", handle)),
        profile=name.partition(" MIG ")[2],
        memory_bytes=_memory_bytes(library, handle),
        gpu_instance=_number(_ask(library, "nvmlDeviceGetGpuInstanceId", handle)),
        compute_instance=_number(_ask(library, "nvmlDeviceGetComputeInstanceId", handle)),
    )


def _number(value: Any) -> int:
    return value if isinstance(value, int) else -1


def _links(library: Any, handle: Any) -> dict[str, int]:
    """Count the card's active NVLinks by their other end."""
    counts: dict[str, int] = {}
    for link in range(_MOST_LINKS):
        state = _ask(library, "nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            break  # no such link, so no further ones
        if state != 1:
            continue
        remote = _ask(library, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        kind = _ask(library, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        is_switch = remote is None or kind == getattr(library, "NVML_NVLINK_DEVICE_TYPE_SWITCH", 2)
        end = "switch" if is_switch else files.normal(_text(remote.busId))
        counts[end] = counts.get(end, 0) + 1
    return counts
