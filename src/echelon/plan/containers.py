"""Wrap a command to run in a Singularity or Apptainer image, by the machine's convention."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence

from echelon.errors import UsageError
from echelon.hardware import vendors
from echelon.machines.machine import Container as Convention
from echelon.machines.machine import Machine
from echelon.spec import Container, Job


def contain(
    image: str,
    machine: Machine | None,
    *,
    folders: Sequence[str],
    binds: Sequence[str],
    vendor: str,
    runtimes: Sequence[str],
) -> Container:
    """Return the command prefix of an image; `folders` must be visible inside, `runtimes` are installed here.

    `binds` are the user's own. Raise UsageError if the image or a folder is missing.
    """
    for bind in binds:
        if not os.path.exists(bind.partition(":")[0]):
            raise UsageError(
                f"--container-bind {bind}: {bind.partition(':')[0] or 'source'} does not exist here",
                hint="--container-bind /scratch/data   or FOLDER:NAME-INSIDE",
            )
    if not os.path.exists(image):
        raise UsageError(f"--container {image}: this image does not exist", hint=_nearest_image(image))
    row = convention(image, machine)
    runtime = _runtime(row, runtimes)
    option = row.gpu_option if row is not None else next(iter(vendors.named(vendor).container_options), "")
    for folder in folders:
        if "," in folder or ":" in folder:
            raise UsageError(
                f"a container cannot see {folder}: its name has a comma or a colon, which separate parts of --bind",
                hint="rename the folder, or work in another folder",
            )
    inside = [*(row.binds if row is not None else ()), *binds]
    for folder in folders:
        if not any(_covers(bind.partition(":")[0], folder) for bind in inside):
            inside.append(folder)
    words = [runtime, row.command if row is not None else "exec", *([option] if option else [])]
    if inside:
        words += ["--bind", ",".join(inside)]
    words.append(os.path.abspath(image))
    if row is not None and row.start_line:
        words += ["bash", "-c", f'{row.start_line}\nexec "$@"', "inside"]
    return Container(
        image=os.path.abspath(image),
        prefix=tuple(words),
        modules=tuple(row.modules) if row is not None else (),
        convention=f"{row.name} ({row.source})" if row is not None else "the runtime's defaults",
    )


def script_folders(job: Job) -> tuple[str, ...]:
    """Return the folder of a job's script, as written and resolved."""
    if job.command.kind != "script":
        return ()
    named = os.path.dirname(os.path.abspath(job.command.target))
    return tuple(dict.fromkeys((named, os.path.dirname(os.path.realpath(job.command.target)))))


def convention(image: str, machine: Machine | None) -> Convention | None:
    """Return the machine's convention for an image: the first whose glob matches, else the one for any image."""
    rows = machine.containers if machine is not None else ()
    path = os.path.abspath(image)
    for row in rows:
        if row.images and fnmatch.fnmatch(path, row.images):
            return row
    return next((row for row in rows if not row.images), None)


def _runtime(row: Convention | None, runtimes: Sequence[str]) -> str:
    wanted = row.runtime if row is not None else "singularity"
    if wanted in runtimes or not runtimes:
        return wanted  # without a runtime here, the compute nodes may have it: else Slurm's error names it
    return runtimes[0]


def _covers(bind: str, folder: str) -> bool:
    return folder == bind or folder.startswith(bind.rstrip("/") + "/")


def _nearest_image(image: str) -> str:
    import difflib

    folder = os.path.dirname(image) or "."
    try:
        names = [name for name in os.listdir(folder) if name.endswith((".sif", ".simg", ".img"))]
    except OSError:
        return f"the folder {folder} does not exist either"
    near = difflib.get_close_matches(os.path.basename(image), names, n=1, cutoff=0.3) or sorted(names)[:1]
    return f"--container {os.path.join(os.path.dirname(image), near[0])}" if near else f"{folder} holds no image"
