"""Say what a device holds besides the tensors of PyTorch: as intervals, each with its source."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass
from typing import Any

from echelon.errors import UsageError
from echelon.machines import files

FACTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "overheads.toml")
CONTEXT, COMMUNICATOR, WORKSPACE, HIDDEN = "context", "communicator", "workspace", "hidden"
LIBRARIES = "libraries"
"""The kernels of cuDNN, cuBLAS and others, which an older stack loads whole, beside the context."""
CONVOLUTION = "convolution"
"""The workspaces of convolutions, which depend on the training and on no fact of the device."""
UNKNOWN = "unknown"
CPU = "cpu"
"""The family of a processor: no device, but the share of a rank in the memory of its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device as a framework counts it."""

    chip: str
    """The chip as it is sold, such as "A100"; any other text is a device that nobody knows."""
    memory_bytes: int

    def __post_init__(self) -> None:
        if self.memory_bytes <= 0:
            raise UsageError(
                f"the memory of {self.chip or 'a device'} is {self.memory_bytes} bytes, but must be more than 0",
                hint="--memory 80G",
            )

    @property
    def family(self) -> str:
        """The family of the chip, if the table of facts has it; else UNKNOWN."""
        return _families().get(_plain(self.chip), UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Memory that is no tensor of the training."""

    kind: str
    low_bytes: int
    high_bytes: int
    source: str


def overhead(device: Device, kind: str, *, number: int = 1) -> Overhead:
    """Return what is known of a device; `number` are counted.

    `kind` is context, libraries, communicator, workspace or hidden.

    A device that nobody knows gets the widest interval of all that are known.
    """
    rows = [row for row in _facts() if row["kind"] == kind]
    known = [row for row in rows if device.family in row["families"]]
    chosen = known or [row for row in rows if CPU not in row["families"]]
    source = (
        known[0]["source"] if known else f"{device.chip or 'this device'} is unknown: the widest interval of others"
    )
    return Overhead(
        kind=kind,
        low_bytes=number * min(row["low_bytes"] for row in chosen),
        high_bytes=number * max(row["high_bytes"] for row in chosen),
        source=source,
    )


def _plain(chip: str) -> str:
    """Return a name for comparison: NVIDIA A100-SXM4-80GB is an A100."""
    text = re.sub(r"\b(nvidia|amd|instinct|tesla|geforce|quadro)\b", " ", chip.lower().replace("_", " "))
    words = re.split(r"[\s-]+", text.strip())
    joined = "".join(words)
    names = sorted({name for name in _names() if joined.startswith(name)}, key=len)
    return names[-1] if names else joined


@functools.lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    return frozenset(_name(chip) for row in _tables()["family"] for chip in row["chips"])


def _name(chip: str) -> str:
    return re.sub(r"geforce|quadro|[\s-]", "", chip.lower())


@functools.lru_cache(maxsize=1)
def _families() -> dict[str, str]:
    return {_name(chip): row["name"] for row in _tables()["family"] for chip in row["chips"]}


def _facts() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = _tables()["fact"]
    return rows


@functools.lru_cache(maxsize=1)
def _tables() -> dict[str, Any]:
    return files.read(FACTS).tables()
