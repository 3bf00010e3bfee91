"""Is there room to write?"""

from __future__ import annotations

from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted
from echelon.node.survey.nouns import Survey
from echelon.units import GIB, size

LEAST_BYTES = 10 * GIB  # a checkpoint of a model with a billion parameters and Adam's states in float32 is 12 GB
LEAST_CACHE_BYTES = GIB
LEAST_FILES = 1000
NOTHING_BYTES = 64 << 20


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report file systems that are full or nearly full, by bytes or by number of files."""
    del wanted
    told: set[str] = set()
    for folder in survey.folders.folders:
        is_checkpoints = folder.purpose == "checkpoints"
        if is_checkpoints and not folder.is_writable:
            yield Finding(
                severity="error", message=f"this node cannot write checkpoints to {folder.path}",
                evidence=f"{folder.filesystem} at {folder.mount}", remedy="cd to a folder of your own",
            )  # fmt: skip
            continue
        least = LEAST_BYTES if is_checkpoints else LEAST_CACHE_BYTES
        if not folder.is_writable or folder.mount in told:
            continue
        few_files = 0 <= folder.free_files < LEAST_FILES
        if 0 <= folder.free_bytes < least or few_files:
            told.add(folder.mount)
            left = f"{folder.free_files} more files" if few_files else size(folder.free_bytes)
            yield Finding(
                severity="error" if 0 <= folder.free_bytes < NOTHING_BYTES or folder.free_files == 0 else "warning",
                message=f"{folder.mount} has room for {left}: {folder.purpose} go there",
                evidence=f"{folder.path} ({folder.filesystem})",
                remedy=f"du -xsh {folder.mount}/* 2>/dev/null | sort -h   shows what fills it",
            )
