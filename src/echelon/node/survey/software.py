"""Read versions from files: importing torch would take seconds and may touch the devices."""

import os
import platform
import re
import sys
from typing import Dict, List, Mapping, Sequence, Tuple

from ...topology import files
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
        driver=_driver(root),
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
            package = _normal(record.group(1)) if record else ""
            if record and package in PACKAGES and package not in versions:
                versions[package], places[package] = record.group(2), folder
    return versions, places


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _driver(root: str) -> str:
    """Return the version of the devices' kernel module.

    NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024
    """
    nvidia = files.text(os.path.join(root, "proc/driver/nvidia/version")).partition("\n")[0]
    versions: List[str] = re.findall(r"\s(\d+\.\d+(?:\.\d+)?)\s", nvidia)
    return versions[0] if versions else files.text(os.path.join(root, "sys/module/amdgpu/version"))
