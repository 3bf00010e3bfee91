"""What a run reads file by file from a disk that all nodes share: its imports, and folders of many small files."""

from __future__ import annotations

import os
import shlex
import sys
import time
from functools import cache
from typing import TYPE_CHECKING

from echelon.host.host import ToolSlow
from echelon.units import counted, duration, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from echelon.checks.finding import Finding
    from echelon.host import Host
    from echelon.spec import Plan

MANY_FILES, SMALL_BYTES = 10_000, 1 << 20
LOOK_SECONDS = 0.5
IMPORT_SECONDS = 60.0
_COUNT = """
import os, sys, time
began = time.monotonic()
import torch
modules = [vars(module) for module in list(sys.modules.values()) if hasattr(module, "__dict__")]
files = {module.get("__cached__") or module.get("__file__") for module in modules}
files |= {line.split()[-1] for line in open("/proc/self/maps")}
places = (sys.prefix, os.path.dirname(os.path.dirname(torch.__file__)))
inside = [path for path in files if isinstance(path, str) and path.startswith(places) and os.path.isfile(path)]
print(len(inside), sum(map(os.path.getsize, inside)), time.monotonic() - began)
"""


def filesystem(path: str) -> str:
    """Return the name of the file system of a path if nodes share it, else nothing."""
    from echelon.node.survey.folders import SHARED, mounts, where

    name = where(path, mounts("/"))[2]
    return name if name in SHARED else ""


def of_imports(host: Host) -> Iterator[Finding]:
    """Count what `import torch` reads, where this Python lies on a shared disk; nothing without PyTorch."""
    name = filesystem(os.path.realpath(sys.prefix))
    if not name:
        return
    try:
        done = host.ask([sys.executable, "-c", _COUNT], timeout_seconds=IMPORT_SECONDS)
        said = done.stdout.split() if not done.exit_code else []
    except ToolSlow:
        return
    if len(said) == 3:
        from echelon.checks.finding import note

        yield note(
            message=f"import torch reads {counted(int(said[0]), 'file')}, {size(int(said[1]))}, from {name}, and so "
            "does every node",
            evidence=f"{duration(float(said[2]))} on this node",
            remedy="echelon run --stage-env reads them once for all nodes, and starts ranks from each node's own disk",
            check="imports",
        )


def of_arguments(plan: Plan) -> Iterator[str]:
    """Yield a sentence for each folder on a shared disk that an argument names and that holds many small files."""
    staged = {item.source for item in plan.staged}
    for word in plan.argv[1:]:
        path = os.path.realpath(word.rpartition("=")[2])
        told = folder_note(path) if os.sep in word and path not in staged else ""
        if told:
            yield f"{told}: echelon pack {shlex.quote(path)}, then --stage-data the image"


@cache
def folder_note(path: str) -> str:
    """Say that a folder lies on a shared disk and holds many small files; empty if not, as far as a short look gets."""
    name = filesystem(os.path.realpath(path)) if os.path.isdir(path) else ""
    num_files, num_bytes = _looked(path) if name else (0, 0)
    if num_files < MANY_FILES or num_bytes >= num_files * SMALL_BYTES:
        return ""
    average = size(num_bytes // num_files)
    return (
        f"{path} holds more than {MANY_FILES:,} files of about {average} on {name}, and each epoch opens each of them"
    )


def _looked(folder: str) -> tuple[int, int]:
    """Return the number and bytes of files below a folder, as far as a short look gets."""
    deadline, num_files, num_bytes = time.monotonic() + LOOK_SECONDS, 0, 0
    waiting = [folder]
    while waiting and num_files < MANY_FILES and time.monotonic() < deadline:
        try:
            with os.scandir(waiting.pop()) as inside:
                for entry in inside:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif num_files < MANY_FILES:
                        num_files += 1
                        num_bytes += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue  # what cannot be read is not counted
    return num_files, num_bytes
