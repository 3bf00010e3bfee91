"""Is torch built for these devices?"""

from __future__ import annotations

from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted
from echelon.node.survey.nouns import Survey

_PAGE = "PyTorch documentation: get started"


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report a PyTorch built for no device or for another vendor's devices, and one from the home folder."""
    del wanted
    packages, allowed = survey.software.packages, [each for each in survey.devices.devices if each.is_allowed]
    version = packages.get("torch", "")
    _, _, build = version.partition("+")
    vendor = allowed[0].vendor if allowed else ""
    if vendor and build == "cpu":
        yield _wrong(survey, version, "is built without device support, but this node has devices", vendor)
    elif vendor == "amd" and (build.startswith("cu") or "nvidia-nccl-cu12" in packages):
        yield _wrong(survey, version, "is built for NVIDIA devices, but this node has AMD devices", vendor)
    elif vendor == "nvidia" and build.startswith("rocm"):
        yield _wrong(survey, version, "is built for AMD devices, but this node has NVIDIA devices", vendor)
    home, place = survey.settings.variables.get("HOME", ""), survey.software.places.get("torch", "")
    if home and home != "/" and place.startswith(home + "/.local/") and not survey.software.container:
        yield Finding(
            severity="note",
            message="torch comes from ~/.local, which Python searches before a module or an environment",
            evidence=place,
            remedy="export PYTHONNOUSERSITE=1   to use the other torch",
        )


def _wrong(survey: Survey, version: str, mistake: str, vendor: str) -> Finding:
    index = "rocm6.4" if vendor == "amd" else "cu128"
    return Finding(
        severity="error",
        message=f"torch {version} {mistake}",
        evidence=survey.software.places.get("torch", ""),
        remedy=f"install the build for {index.rstrip('0123456789.')}: see PyTorch's page on getting started",
        source=_PAGE,
    )
