"""Read versions from files: importing torch would take seconds and may touch the devices."""

import os
import platform
import re
import sys
from typing import Dict, Mapping, Sequence, Tuple

from ...hardware import files, vendors
from .nouns import Software

PACKAGES = (
    "torch", "triton", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "transformers", "lightning",
    "pytorch-lightning", "accelerate", "deepspeed", "flash-attn", "echelon",
)  # fmt: skip
_RECORD = re.compile(r"([\w.-]+?)-([^-]+)\.(?:dist|egg)-info$")


def read(root: str, environ: Mapping[str, str], *, search_path: Sequence[str], binds: Sequence[str]) -> Software:
    """Return versions; packages are searched in the path of the ranks' Python."""
    packages, places = installed(search_path)
    return Software(
        kernel=files.text(os.path.join(root, "proc/sys/kernel/osrelease")),
        architecture=platform.machine(),
        driver=next(filter(None, (vendor.driver_version(root) for vendor in vendors.LISTED)), ""),
        python=platform.python_version(),
        interpreter=sys.executable,
        container=environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER", ""),
        binds=tuple(path for path in binds if os.path.exists(os.path.join(root, path.lstrip("/")))),
        packages=packages,
        places=places,
    )


def search_path() -> Tuple[str, ...]:
    """Return the folders that Python searches for packages, after its own library."""
    return tuple(folder for folder in sys.path if folder and not folder.endswith(".zip"))


def installed(search_path: Sequence[str]) -> Tuple[Dict[str, str], Dict[str, str]]:
    """Return the versions of the relevant packages, and the first folder that has each."""
    versions: Dict[str, str] = {}
    places: Dict[str, str] = {}
    for folder in search_path:
        for name in files.names(folder):
            record = _RECORD.match(name)
            package = re.sub(r"[-_.]+", "-", record.group(1)).lower() if record else ""
            if record and package in PACKAGES and package not in versions:
                versions[package], places[package] = record.group(2), folder
    return versions, places
