"""Explain PyTorch's numbers when a device runs out of memory, and say what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass

from echelon.hardware import vendors
from echelon.orders.scale import KINDS
from echelon.units import size

_SIZE = r"(\d+(?:\.\d+)?) (bytes|[KMGT]iB)"  # the format of c10's format_size
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_BEGINS = re.compile(rf"\b({vendors.ERROR_WORDS}) out of memory\. Tried to allocate {_SIZE}")
_OF_THE_DRIVER = re.compile(rf"\b({vendors.ERROR_WORDS}) error: out of memory|(Cuda) failure (?:\d+ )?'out of memory'")
_FIELDS = {
    "total": rf"total capaci?ty of {_SIZE}",  # PyTorch 2.1 spelled it capacty
    "free": rf"of which {_SIZE} is free",
    "own": rf"this process has {_SIZE} memory in use",  # only CUDA reports this part, and not in every container
    "allowed": rf"{_SIZE} allowed;",
    "allocated": rf"Of the allocated memory {_SIZE} is allocated by PyTorch",  # CUDA graphs hold this part
    "unallocated": rf"{_SIZE} is reserved by PyTorch but unallocated",
}
_ROUNDED = 1.01  # PyTorch rounds to two digits
_PIECES = 0.05  # share of the device: a smaller amount would not last, even in one piece
_OTHERS = 0.1  # share of the device: a smaller amount is PyTorch's context, and NCCL's or RCCL's buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """PyTorch's numbers for a failed allocation; sizes in bytes, -1 if the message lacks them."""

    backend: str
    """The first word of the message."""
    wanted: int
    total: int
    free: int
    own: int
    allowed: int
    allocated: int
    unallocated: int
    processes: tuple[str, ...]
    """The process numbers of other users of the device."""
    variable: str
    """The variable that configures this version's allocator."""

    @property
    def held_by_torch(self) -> int:
        return self.allocated + self.unallocated

    @property
    def held_by_others(self) -> int:
        return self.total - self.free - (self.own if self.own >= 0 else self.held_by_torch)


def read(text: str) -> Shortage | None:
    """Return the last such message in a rank's last words; None if there is none with all numbers."""
    begins = list(_BEGINS.finditer(text))
    if not begins:
        return None
    backend = begins[-1].group(1)
    message = text[begins[-1].start() :].partition("\n")[0]
    sizes = {name: _bytes(re.search(pattern, message)) for name, pattern in _FIELDS.items()}
    if min(sizes[name] for name in ("total", "free", "allocated", "unallocated")) < 0:
        return None  # before 2.1, PyTorch's message had other numbers
    variable = re.search(r"\b(PYTORCH_\w*ALLOC_CONF)\b", message)
    return Shortage(
        backend=backend,
        wanted=_bytes(re.search(rf"allocate {_SIZE}", message)),
        processes=tuple(re.findall(r"\bProcess (\d+) has", message)) if sizes["own"] >= 0 else (),
        variable=variable.group(1) if variable else f"PYTORCH_{backend}_ALLOC_CONF",
        **sizes,
    )


def _bytes(match: re.Match[str] | None) -> int:
    return round(float(match.group(1)) * _UNITS[match.group(2)]) if match else -1


def explain(text: str, *, scale: str) -> list[str]:
    """Return what happened and what to do, one line each; nothing for any other message.

    `scale` is the way in which the script was scaled: "off", "data", "fsdp", …; "off" also where the options of the run
    do not go with another one.
    """
    short = read(text)
    if short is not None:
        reading, hint = _reading(short, scale)
        return [f"memory: {reading}", f"hint: {hint}"]
    of_driver = _OF_THE_DRIVER.search(text)
    if of_driver is None:
        return []
    asks = _WHO_ASKS[(of_driver.group(1) or of_driver.group(2)).upper()]
    return [
        "memory: the device had no memory left for the driver or for NCCL, or none at the very start",
        f"hint: find other processes on the device ({asks}); without them, leave some memory free: "
        "torch.cuda.set_per_process_memory_fraction(0.9)",
    ]


def _reading(short: Shortage, scale: str) -> tuple[str, str]:
    wanted, total, free = size(short.wanted), size(short.total), size(short.free)
    if 0 <= short.allowed <= _ROUNDED * (short.held_by_torch + short.wanted):
        return (
            f"the script limits itself to {size(short.allowed)} of the device's {total}, PyTorch holds "
            f"{size(short.held_by_torch)}, and needs {wanted} more",
            "set a larger share: torch.cuda.set_per_process_memory_fraction(1.0)",
        )
    if short.wanted > short.total:
        return (
            f"a single tensor needs {wanted}, but the whole device has {total}",
            "check the shape of the tensor: the last line of the traceback makes it",
        )
    if short.held_by_others > _OTHERS * short.total:
        who = f" (process {', '.join(short.processes)})" if short.processes else ""
        return (
            f"of the device's {total} other processes hold {size(short.held_by_others)}{who}, and this rank's "
            f"PyTorch holds {size(short.held_by_torch)} and needs {wanted} more",
            "find another job's process, or a rank that does not use its own device: "
            f"{_WHO_ASKS[short.backend]} lists them",
        )
    if short.wanted <= short.free:
        return (
            f"PyTorch needed {wanted}, and of the device's {total} {free} was free when PyTorch looked: the "
            "device was not full",
            "another process may have used the memory for a moment, or the driver has its own limit: ulimit -a, dmesg",
        )
    if short.unallocated >= max(short.wanted, _PIECES * short.total):
        return (
            f"the memory is fragmented: PyTorch needs {wanted}, and holds {size(short.unallocated)} of unused "
            f"memory, but in several pieces; {free} of the device's {total} is free",
            f"echelon run --env {short.variable}=expandable_segments:True …",
        )
    more_room = f"{KINDS[scale].more_room}; or " if scale in KINDS else ""
    return (
        f"the device is full: of its {total} this rank's PyTorch uses {size(short.allocated)}, {free} is free, "
        f"and PyTorch needs {wanted} more",
        f"{more_room}use smaller batches with gradient accumulation, or activation checkpointing; to see "
        "what fits: echelon plan --parameters",
    )


_WHO_ASKS = {vendor.torch_word.upper(): vendor.users_command for vendor in vendors.ALL}
