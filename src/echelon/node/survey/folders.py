"""Find the folders that ranks will write to, their file systems, and the quotas that apply."""

import os
import re
import shutil
import subprocess
from typing import Iterator, List, Mapping, Sequence, Tuple

from ...environment import devices
from ...hardware import files as hardware_files
from ...hardware import vendors
from ...hardware.vendor import Cache
from .nouns import Folder, Folders, Quota, Quotas

# the programs' own documentation: Triton (TRITON_CACHE_DIR), PyTorch (inductor, hub, cpp_extension), Hugging Face Hub
# (HF_HOME), aiter (AITER_JIT_DIR)
_CACHES = (
    Cache("Triton's kernels", "TRITON_CACHE_DIR", "{home}/.triton/cache"),
    Cache("Inductor's code", "TORCHINDUCTOR_CACHE_DIR", "{tmp}/torchinductor_{user}"),
    Cache("PyTorch's extensions", "TORCH_EXTENSIONS_DIR", "{cache}/torch_extensions"),
    Cache("aiter's kernels", "AITER_JIT_DIR", ""),  # written only if the variable is set
    Cache("Hugging Face's files", "HF_HOME", "{cache}/huggingface"),
    Cache("PyTorch's downloads", "TORCH_HOME", "{cache}/torch"),
    Cache("temporary files", "TMPDIR", "/tmp"),
)


def read(root: str, environ: Mapping[str, str], *, checkpoints: str) -> Folders:
    """Return the folders of programs for these devices, and the folder of checkpoints."""
    mounted = mounts(root)
    own = (*vendors.named(devices.vendor(environ, root)).caches, *_CACHES)
    folders = []
    for cache in (*(cache for vendor in vendors.BY_NAME for cache in vendor.caches), *_CACHES):
        named = environ.get(cache.variable, "")
        path = named or (cache.default.format(**_places(environ)) if cache in own else "")
        if path:
            folders.append(_folder(cache.purpose, cache.variable if named else "", path, mounted))
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
    around = [pair for pair in mounted if pair[0] == "/" or there == pair[0] or there.startswith(pair[0] + "/")]
    mount, filesystem = max(around, key=lambda pair: len(pair[0]), default=("", ""))
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


SHARED = ("lustre", "nfs", "nfs4", "gpfs", "beegfs", "cephfs", "ceph", "wekafs", "panfs", "pvfs2", "orangefs", "cifs",
          "smb3", "fuse.sshfs", "afs", "9p", "fuse.ceph", "fuse.juicefs", "vastnfs")  # fmt: skip
"""Names in /proc/mounts of file systems that several nodes share."""


def is_shared(path: str) -> bool:
    """Say whether several nodes share the disk of a path."""
    return where(path, mounts("/"))[2] in SHARED


def mounts(root: str) -> List[Tuple[str, str]]:
    """Return each mount point with its file system, the last mounted first.

    36 35 98:0 / /scratch rw,noatime - lustre 10.0.0.1@o2ib:/scratch rw
    """
    mounted = []
    for line in hardware_files.text(os.path.join(root, "proc/self/mountinfo")).splitlines():
        left, _, right = line.partition(" - ")
        if len(left.split()) > 4 and right:
            mounted.append((left.split()[4].replace("\\040", " "), right.split()[0]))
    return mounted[::-1]


TOOL_SECONDS = 4.0
_KIB = 1024
_NUMBERS = re.compile(r"(\d+)\*?$")  # a star marks an exceeded limit
_PROJECT = re.compile(r"\s*(\d+)\s+[-P]\s")


def read_quotas(root: str, environ: Mapping[str, str], *, checkpoints: str) -> Quotas:
    """Return the quotas of the owners that checkpoints count for; empty if no tool knows them."""
    if not checkpoints:
        return Quotas()
    there, mount, filesystem = where(checkpoints, mounts(root))
    path = environ.get("PATH", os.defpath)
    if filesystem == "lustre" and shutil.which("lfs", path=path):
        return Quotas(tuple(_of_lustre(there, mount, environ)))
    if filesystem != "lustre" and shutil.which("quota", path=path):
        return Quotas(tuple(_of_kernel(mount, environ)))
    return Quotas()


def _of_lustre(folder: str, mount: str, environ: Mapping[str, str]) -> Iterator[Quota]:
    owners = [("user", "-u", os.geteuid()), ("group", "-g", os.stat(folder).st_gid)]
    project = _PROJECT.match(_said(["lfs", "project", "-d", folder], environ))
    if project and int(project.group(1)):
        owners.append(("project", "-p", int(project.group(1))))
    for owner, option, number in owners:
        command = ["lfs", "quota", "-q", option, str(number), mount]
        words = _said(command, environ).split()
        # /scratch 8* 0 5 - 1 0 0 -   in kilobytes; a long name stands on its own line
        if mount in words:
            yield from _quota(owner, mount, words[words.index(mount) + 1 :], ["lfs", "quota", "-h", *command[3:]])


def _of_kernel(mount: str, environ: Mapping[str, str]) -> Iterator[Quota]:
    """Ask quota(1) for the kernel's own quotas and those of NFS."""
    lines = _said(["quota", "-w", "-p", "-v", "-f", mount], environ).splitlines()
    # /dev/sda1 1234* 1000 2000 604800 10 0 0 0   below two lines of headings
    for line in lines[2:3]:
        yield from _quota("user", mount, line.split()[1:], ["quota", "-s", "-f", mount])


def _quota(owner: str, mount: str, words: Sequence[str], command: List[str]) -> Iterator[Quota]:
    numbers = [_NUMBERS.match(word) for word in (*words[:3], *words[4:7])]
    if len(words) < 8 or None in numbers:
        return
    used, soft, limit, files, soft_files, limit_files = [int(each.group(1)) for each in numbers if each]
    if soft or limit or soft_files or limit_files:
        yield Quota(
            owner=owner, mount=mount, used_bytes=used * _KIB, soft_bytes=soft * _KIB, limit_bytes=limit * _KIB,
            used_files=files, soft_files=soft_files, limit_files=limit_files, command=" ".join(command),
        )  # fmt: skip


def _said(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return a tool's output; empty if it fails. Raise TimeoutError if it hangs."""
    try:
        done = subprocess.run(
            list(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=TOOL_SECONDS, env={**environ, "LC_ALL": "C"}, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TimeoutError("%s did not answer within %g s" % (command[0], TOOL_SECONDS)) from None
    except OSError:
        return ""
    return os.fsdecode(done.stdout)
