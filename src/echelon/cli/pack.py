"""`echelon pack`: make one image of a folder of many small files, which a shared disk serves much faster."""

from __future__ import annotations

import os
import shlex
import shutil

from echelon.cli.help import Help
from echelon.cli.options import Option
from echelon.cli.talk import say
from echelon.errors import RunError, UsageError, seen
from echelon.host import Host
from echelon.launch.staged_paths import IMAGES
from echelon.units import size

OPTIONS = (
    Option(
        names=("-o", "--output"), value="FILE", takes="file",
        help="the image (default: the folder's name with .squashfs)",
    ),
    Option(names=("-h", "--help"), help="show this"),
)  # fmt: skip
HELP = Help(
    command="pack",
    usage=("[options] FOLDER",),
    about="Pack a folder into a SquashFS image, by mksquashfs. Reading a million files costs a shared disk a million "
    "openings in each epoch; the image is one file, and --stage-data mounts it on each node, where the script sees a "
    "folder again.",
    operands=(Option(names=("FOLDER",), takes="folder", help="the folder"),),
    groups=(("options", OPTIONS),),
    example="echelon pack imagenet -o imagenet.squashfs",
)
_HOW = ("-noappend", "-no-recovery", "-quiet")


def main(arguments: list[str]) -> int:
    """Write the image beside its name first, so that a broken one is never taken for a whole one."""
    scanned = HELP.scan_all(arguments)
    if len(scanned.rest) != 1 or not os.path.isdir(scanned.rest[0]):
        asked = seen(" ".join(scanned.rest)) if scanned.rest else "nothing"
        raise UsageError(f"echelon pack {asked}: name one folder", hint="echelon pack data")
    folder = os.path.normpath(scanned.rest[0])
    image = scanned.last.get("output", os.path.basename(os.path.abspath(folder)) + IMAGES[0])
    _refuse(folder, image)
    unfinished = f"{image}.{os.getpid()}.part"
    say(f"mksquashfs packs {folder}")
    try:
        host = Host()
        code = host.lead(["mksquashfs", folder, unfinished, *_HOW], environ=host.environ, folder=os.getcwd())
        if code:
            raise RunError(f"mksquashfs ended with exit code {code}")
        os.rename(unfinished, image)
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
    say(f"{image}: {size(os.path.getsize(image))}; echelon run --stage-data {shlex.quote(image)} …")
    return 0


def _refuse(folder: str, image: str) -> None:
    if not image.endswith(IMAGES):
        raise UsageError(
            f"--output {seen(image)}: give a name that ends with {' or '.join(IMAGES)}", hint=f"-o {folder}{IMAGES[0]}"
        )
    if os.path.exists(image):
        raise UsageError(f"{image} is there already", hint=f"rm {shlex.quote(image)}")
    if os.path.realpath(image).startswith(os.path.realpath(folder) + os.sep):
        raise UsageError(f"{image} would lie in the folder that is packed", hint=f"-o {folder}{IMAGES[0]}")
    if shutil.which("mksquashfs") is None:
        raise UsageError(
            "mksquashfs is not installed here",
            hint="apt install squashfs-tools, or on a cluster: module spider squashfs",
        )
