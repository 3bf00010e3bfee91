"""Where do the caches really lie?"""

from __future__ import annotations

from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted
from echelon.node.survey.nouns import Folder, Survey

SHARED = ("lustre", "nfs", "nfs4", "gpfs", "beegfs", "cephfs", "ceph", "wekafs", "panfs", "pvfs2", "orangefs", "cifs",
          "smb3", "fuse.sshfs", "afs", "9p", "fuse.ceph", "fuse.juicefs", "vastnfs")  # fmt: skip
"""Names in /proc/mounts of file systems that several nodes share."""
LOCKING = ("MIOpen's database", "MIOpen's kernels")
"""Caches that all ranks write at once: databases whose locks do not work on shared file systems."""
COMPILED = ("Triton's kernels", "Inductor's code", "PyTorch's extensions", "CUDA's kernels", "aiter's kernels",
            "temporary files")  # fmt: skip
VARIABLES = {"MIOpen's database": "MIOPEN_USER_DB_PATH", "MIOpen's kernels": "MIOPEN_CUSTOM_CACHE_DIR",
             "Triton's kernels": "TRITON_CACHE_DIR", "Inductor's code": "TORCHINDUCTOR_CACHE_DIR",
             "PyTorch's extensions": "TORCH_EXTENSIONS_DIR", "CUDA's kernels": "CUDA_CACHE_PATH",
             "aiter's kernels": "AITER_JIT_DIR", "temporary files": "TMPDIR", "Hugging Face's files": "HF_HOME",
             "PyTorch's downloads": "TORCH_HOME"}  # fmt: skip
MANY_RANKS = 2


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report caches that are shared, not writable or another user's, and cache variables that hold no path."""
    num_ranks = wanted.ranks_on(survey) * wanted.num_nodes
    for folder in survey.folders.folders:
        if folder.purpose == "checkpoints" or VARIABLES.get(folder.purpose, "") in wanted.provided:
            continue
        broken = _broken(folder)
        if broken is not None:
            yield broken
        elif folder.filesystem in SHARED and num_ranks >= MANY_RANKS and folder.purpose in (*LOCKING, *COMPILED):
            yield _shared(folder, num_ranks)


def _broken(folder: Folder) -> Finding | None:
    """Report a cache variable that holds no path, or a folder that cannot be written."""
    name = folder.variable or VARIABLES.get(folder.purpose, "")
    own = f"export {name}=/tmp/$USER-{name.lower().replace('_', '-')}"
    if folder.variable and any(sign in folder.path for sign in ("$(", "${", "$", "`", "~", "<", "{")):
        return Finding(
            severity="error", message=f"{name} holds an unexpanded placeholder: {folder.path}",
            evidence="the shell expands variables inside double quotes, and runs $(…) as a command", remedy=own,
        )  # fmt: skip
    if folder.variable and not folder.path.startswith("/"):
        return Finding(
            severity="warning", message=f"{name} is a relative path: each rank starts in its own folder",
            evidence=f"{name}={folder.path}", remedy=own,
        )  # fmt: skip
    if not folder.is_writable:
        return Finding(
            severity="error" if folder.is_there or folder.variable else "warning",
            message=f"{folder.purpose}: this node cannot write to {folder.path}",
            evidence=f"{folder.filesystem} at {folder.mount}", remedy=own,
        )  # fmt: skip
    if folder.variable and folder.is_there and not folder.is_own and folder.purpose != "temporary files":
        return Finding(
            severity="warning", message=f"{folder.purpose}: another user owns the folder {folder.path}",
            evidence="programs run code from this folder", remedy=own,
        )  # fmt: skip
    return None


def _shared(folder: Folder, num_ranks: int) -> Finding:
    name = VARIABLES[folder.purpose]
    locks = folder.purpose in LOCKING
    return Finding(
        severity="warning",
        message=f"{folder.purpose}: on {folder.filesystem}, which all nodes share; "
        + ("locks fail and ranks wait for each other" if locks else f"{num_ranks} ranks write there"),
        evidence=f"{folder.path} is below {folder.mount}" + ("" if folder.variable else f"; {name} is not set"),
        remedy=f"export {name}=/tmp/$USER-{name.lower().replace('_', '-')}",
        source="lumi-userguide: PyTorch; the LUMI slides on extreme scale" if locks else f"documentation of {name}",
    )
