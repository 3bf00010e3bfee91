"""The vendors that echelon knows, and which of them an environment or a node means."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .amd import AMD
from .intel import INTEL
from .nvidia import NVIDIA
from .vendor import Interconnect, Vendor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .answers import Sampled

ALL: tuple[Vendor, ...] = (NVIDIA, AMD, INTEL)
LISTED: tuple[Vendor, ...] = tuple(vendor for vendor in ALL if vendor.control_file)
"""Those whose devices echelon can list. A card counts before the graphics of a processor, which AMD's driver shows."""
BY_NAME: tuple[Vendor, ...] = tuple(sorted(LISTED, key=lambda vendor: vendor.name))
VARIABLES: tuple[str, ...] = tuple(dict.fromkeys(name for vendor in ALL for name in vendor.variables))
"""All variables that filter devices."""
ERROR_WORDS = "|".join(vendor.torch_word.upper() for vendor in ALL)
"""A pattern of the words with which PyTorch's errors about devices begin."""
UNKNOWN = Vendor()


def named(name: str) -> Vendor:
    """Return the vendor with a name; UNKNOWN for any other name."""
    return next((vendor for vendor in ALL if vendor.name == name), UNKNOWN)


def of(devices: Sequence[Sampled]) -> Vendor:
    """Return the vendor of a node's devices; UNKNOWN without devices."""
    return named(devices[0].vendor) if devices else UNKNOWN


def meant(environ: Mapping[str, str], found: Sequence[Vendor]) -> Vendor:
    """Return the vendor whose devices count, among those whose devices were found, or any if none was found.

    It is the first one that a filter variable names, else the first one.
    """
    among = [vendor for vendor in LISTED if vendor in found] or LISTED
    named = [vendor for vendor in among if any(text is not None for text in vendor.filter_texts(environ))]
    return (named or among)[0]


def driven(root: str = "/") -> Vendor:
    """Return the vendor whose driver is loaded; UNKNOWN without one."""
    return next((vendor for vendor in LISTED if os.path.exists(os.path.join(root, vendor.control_file))), UNKNOWN)


def interconnect(kind: str) -> Interconnect:
    return next((vendor.interconnect for vendor in LISTED if vendor.interconnect.kind == kind), Interconnect())
