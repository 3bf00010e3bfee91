"""Find the folders that ranks will write to, and their file systems."""

import os
from typing import List, Mapping, NamedTuple, Sequence, Tuple

from ...environment import devices
from ...topology import files
from .nouns import Folder, Folders


class _Habit(NamedTuple):
    """A folder that a program writes by default."""

    purpose: str
    variable: str
    default: str  # may contain {home}, {cache}, {tmp}, {user}; empty: used only if the variable is set
    vendor: str = ""


# the programs' own documentation: MIOpen (cache directory), Triton (TRITON_CACHE_DIR), PyTorch (inductor, hub,
# cpp_extension), Hugging Face Hub (HF_HOME), CUDA (CUDA_CACHE_PATH), aiter (AITER_JIT_DIR)
_HABITS = (
    _Habit("MIOpen's database", "MIOPEN_USER_DB_PATH", "{home}/.config/miopen", "amd"),
    _Habit("MIOpen's kernels", "MIOPEN_CUSTOM_CACHE_DIR", "{cache}/miopen", "amd"),
    _Habit("CUDA's kernels", "CUDA_CACHE_PATH", "{home}/.nv/ComputeCache", "nvidia"),
    _Habit("Triton's kernels", "TRITON_CACHE_DIR", "{home}/.triton/cache"),
    _Habit("Inductor's code", "TORCHINDUCTOR_CACHE_DIR", "{tmp}/torchinductor_{user}"),
    _Habit("PyTorch's extensions", "TORCH_EXTENSIONS_DIR", "{cache}/torch_extensions"),
    _Habit("aiter's kernels", "AITER_JIT_DIR", ""),
    _Habit("Hugging Face's files", "HF_HOME", "{cache}/huggingface"),
    _Habit("PyTorch's downloads", "TORCH_HOME", "{cache}/torch"),
    _Habit("temporary files", "TMPDIR", "/tmp"),
)


def read(root: str, environ: Mapping[str, str], *, checkpoints: str) -> Folders:
    """Return the folders of programs for these devices, and the folder of checkpoints."""
    vendor = devices.vendor(environ, root)
    mounted = mounts(root)
    folders = []
    for habit in _HABITS:
        named = environ.get(habit.variable, "")
        path = named or habit.default.format(**_places(environ))
        if path and (named or habit.vendor in ("", vendor)):
            folders.append(_folder(habit.purpose, habit.variable if named else "", path, mounted))
    if checkpoints:
        folders.append(_folder("checkpoints", "", checkpoints, mounted))
    return Folders(tuple(folders))


def _places(environ: Mapping[str, str]) -> "dict[str, str]":
    home = environ.get("HOME", "/")
    return {
        "home": home,
        "cache": environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"),
        "tmp": environ.get("TMPDIR") or "/tmp",
        "user": environ.get("USER") or str(os.getuid()),
    }


def where(path: str, mounted: "Sequence[Tuple[str, str]]") -> Tuple[str, str, str]:
    """Return the nearest existing parent, its mount point and its file system."""
    there = os.path.realpath(path)
    mount, filesystem = _mount_of(there, mounted)
    while not os.path.exists(there) and there != "/":
        there = os.path.dirname(there)  # missing folders will be created in it
    return there, mount, filesystem


def _folder(purpose: str, variable: str, path: str, mounted: "Sequence[Tuple[str, str]]") -> Folder:
    there, mount, filesystem = where(path, mounted)
    free_bytes, free_files, owner = -1, -1, -1
    try:
        status = os.statvfs(there)
        free_bytes = status.f_bavail * status.f_frsize if status.f_blocks else -1
        free_files = status.f_favail if status.f_files else -1
        owner = os.stat(path).st_uid
    except OSError:
        pass  # the folder does not exist yet, or was removed meanwhile
    return Folder(
        purpose=purpose,
        variable=variable,
        path=path,
        filesystem=filesystem,
        mount=mount,
        is_there=os.path.isdir(path),
        is_writable=os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK),
        is_own=owner in (-1, os.geteuid()),
        free_bytes=free_bytes,
        free_files=free_files,
    )


def mounts(root: str) -> List[Tuple[str, str]]:
    """Return each mount point with its file system, the last mounted first.

    36 35 98:0 / /scratch rw,noatime - lustre 10.0.0.1@o2ib:/scratch rw
    """
    mounted = []
    for line in files.text(os.path.join(root, "proc/self/mountinfo")).splitlines():
        left, _, right = line.partition(" - ")
        if len(left.split()) > 4 and right:
            mounted.append((left.split()[4].replace("\\040", " "), right.split()[0]))
    return mounted[::-1]


def _mount_of(path: str, mounted: "Sequence[Tuple[str, str]]") -> Tuple[str, str]:
    around = [pair for pair in mounted if pair[0] == "/" or path == pair[0] or path.startswith(pair[0] + "/")]
    return max(around, key=lambda pair: len(pair[0]), default=("", ""))
