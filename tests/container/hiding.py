"""Take the host's Slurm, munge and echelon out of this process's view of the file tree.

Each tree gets an overlay whose upper layer lives in memory and holds a whiteout for each hidden name; it is
made in a mount namespace of this process, so that nobody else sees it and nothing is left of it.
"""

import ctypes
import fnmatch
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence

from .errors import Fatal
from .image import Image

CLONE_NEWNS = 0x20000
MS_RDONLY, MS_REC, MS_PRIVATE, MNT_DETACH = 1, 1 << 14, 1 << 18, 2
OURS = ("echelon", "echelon-*", "*echelon*.pth", "__editable__*echelon*")
SLURM_PROGRAMS = (
    *("sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "scrontab", "sdiag"),
    *("seff", "sgather", "sh5util", "sinfo", "sprio", "squeue", "sreport", "srun", "sshare", "sstat", "strigger"),
    *("slurm*", "munge*", "unmunge", "remunge", "echelon"),
)
SLURM_LIBRARIES = ("slurm*", "libslurm*", "libmunge*", "libpmi*")
USR = (
    *(("bin", SLURM_PROGRAMS), ("sbin", SLURM_PROGRAMS)),
    *(("local/bin", SLURM_PROGRAMS), ("local/sbin", SLURM_PROGRAMS)),
    *(("lib", SLURM_LIBRARIES), ("lib64", SLURM_LIBRARIES), ("lib/*-linux-gnu", SLURM_LIBRARIES)),
    *(("lib/python3*/*-packages", OURS), ("local/lib/python3*/*-packages", OURS)),
)
_libc = ctypes.CDLL(None, use_errno=True)


def hide(image: Image) -> None:
    """Leave the host's file tree, and hide in the new one what a container must not find."""
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(image.python)))  # while the link to it can be seen
    if _libc.unshare(CLONE_NEWNS):
        raise Fatal(f"container creation failed: {os.strerror(ctypes.get_errno())}; only root may do this")
    _mount("none", "/", "", MS_REC | MS_PRIVATE)
    for folder in image.hidden:
        if os.path.isdir(folder) and image.site.startswith(f"{folder}/"):
            _hide_all_but(folder, image.site)
        elif os.path.isdir(folder):
            _mount("tmpfs", folder, "tmpfs", 0)
    _overlay("/usr", USR)
    if prefix != "/usr":
        _overlay(prefix, (("lib/python3*/site-packages", OURS), ("bin", ("echelon",))))
    if image.site:
        _overlay(image.site, ((".", OURS),))


def _hide_all_but(folder: str, kept: str) -> None:
    descriptor = os.open(kept, os.O_PATH)
    _mount("tmpfs", folder, "tmpfs", 0)
    os.makedirs(kept)
    _mount(f"/proc/self/fd/{descriptor}", kept, "", 1 << 12)
    os.close(descriptor)


def _overlay(root: str, patterns: Sequence[tuple[str, Sequence[str]]]) -> None:
    hidden = list(_matches(root, patterns))
    memory = tempfile.mkdtemp(prefix="container-")
    _mount("tmpfs", memory, "tmpfs", 0)
    upper, work = f"{memory}/upper", f"{memory}/work"
    for folder in (upper, work):
        os.mkdir(folder, 0o755)
    for path in hidden:
        place = f"{upper}/{path}"
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.mknod(place, stat.S_IFCHR, 0)
    _mount("overlay", root, "overlay", 0, f"lowerdir={root},upperdir={upper},workdir={work}")
    # The overlay holds on to its layers.
    _libc.umount2(memory.encode(), MNT_DETACH)
    os.rmdir(memory)


def _matches(root: str, patterns: Sequence[tuple[str, Sequence[str]]]) -> Iterator[str]:
    for place, names in patterns:
        for folder in _folders(root, place.split("/")):
            for name in os.listdir(f"{root}/{folder}"):
                if any(fnmatch.fnmatchcase(name, pattern) for pattern in names):
                    yield os.path.normpath(f"{folder}/{name}")


def _folders(root: str, parts: list[str], folder: str = ".") -> Iterator[str]:
    if not parts:
        if os.path.isdir(f"{root}/{folder}") and not os.path.islink(f"{root}/{folder}"):
            yield folder
        return
    first, *rest = parts
    if not os.path.isdir(f"{root}/{folder}"):
        return
    names = os.listdir(f"{root}/{folder}") if "*" in first else [first]
    for name in names:
        if fnmatch.fnmatchcase(name, first):
            yield from _folders(root, rest, f"{folder}/{name}")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    if _libc.mount(source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None):
        reason = os.strerror(ctypes.get_errno())
        raise Fatal(f"container creation failed: while mounting {kind or source} on {target}: {reason}")
