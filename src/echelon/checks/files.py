"""Is there room to write, are the caches on a fast disk, and does a container show what ranks need?"""

from __future__ import annotations

from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted, error, warning
from echelon.node.survey.folders import SHARED
from echelon.node.survey.nouns import Folder, Quota, Survey
from echelon.units import GIB, size

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


def check_caches(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
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
        return error(
            message=f"{name} holds an unexpanded placeholder: {folder.path}",
            evidence="the shell expands variables inside double quotes, and runs $(…) as a command", remedy=own,
        )  # fmt: skip
    if folder.variable and not folder.path.startswith("/"):
        return warning(
            message=f"{name} is a relative path: each rank starts in its own folder",
            evidence=f"{name}={folder.path}", remedy=own,
        )  # fmt: skip
    if not folder.is_writable:
        return Finding(
            severity="error" if folder.is_there or folder.variable else "warning",
            message=f"{folder.purpose}: this node cannot write to {folder.path}",
            evidence=f"{folder.filesystem} at {folder.mount}", remedy=own,
        )  # fmt: skip
    if folder.variable and folder.is_there and not folder.is_own and folder.purpose != "temporary files":
        return warning(
            message=f"{folder.purpose}: another user owns the folder {folder.path}",
            evidence="programs run code from this folder", remedy=own,
        )  # fmt: skip
    return None


def _shared(folder: Folder, num_ranks: int) -> Finding:
    name = VARIABLES[folder.purpose]
    locks = folder.purpose in LOCKING
    return warning(
        message=f"{folder.purpose}: on {folder.filesystem}, which all nodes share; "
        + ("locks fail and ranks wait for each other" if locks else f"{num_ranks} ranks write there"),
        evidence=f"{folder.path} is below {folder.mount}" + ("" if folder.variable else f"; {name} is not set"),
        remedy=f"export {name}=/tmp/$USER-{name.lower().replace('_', '-')}",
        source="lumi-userguide: PyTorch; the LUMI slides on extreme scale" if locks else f"documentation of {name}",
    )


def check_quota(survey: Survey, _wanted: Wanted) -> Iterator[Finding]:
    """Report quotas that are exhausted, nearly exhausted, or above their soft limit."""
    for quota in survey.quotas.quotas:
        for unit, used, soft, limit, least in (
            ("bytes", quota.used_bytes, quota.soft_bytes, quota.limit_bytes, LEAST_BYTES),
            ("files", quota.used_files, quota.soft_files, quota.limit_files, LEAST_FILES),
        ):
            yield from _judged(quota, unit, used=used, soft=soft, limit=limit, least=least)


def _judged(quota: Quota, unit: str, *, used: int, soft: int, limit: int, least: int) -> Iterator[Finding]:
    name = f"the {quota.owner}'s quota of {unit} on {quota.mount}"
    most = limit or soft
    if most and used >= most:
        severity, message = "error" if limit else "warning", f"{name} is used up: checkpoints go there"
    elif most and most - used < least:
        severity, message = "warning", f"{name} is nearly used up: checkpoints go there"
    elif soft and used >= soft:
        severity, message = "warning", f"{name} is above its soft limit: in some days nobody can write there"
    else:
        return
    yield Finding(
        severity=severity,
        message=message,
        evidence=f"{_shown(used, unit)} of {_shown(most, unit)}",
        remedy=f"remove files that you do not need, or write elsewhere: {quota.command}",
        source="lfs-quota(1), quota(1)",
    )


def _shown(count: int, unit: str) -> str:
    return size(count) if unit == "bytes" else f"{count} files"


LEAST_BYTES = 10 * GIB  # a checkpoint of a model with a billion parameters and Adam's states in float32 is 12 GB
LEAST_CACHE_BYTES = GIB
LEAST_FILES = 1000
NOTHING_BYTES = 64 << 20


def check_room(survey: Survey, _wanted: Wanted) -> Iterator[Finding]:
    """Report file systems that are full or nearly full, by bytes or by number of files."""
    told: set[str] = set()
    for folder in survey.folders.folders:
        is_checkpoints = folder.purpose == "checkpoints"
        if is_checkpoints and not folder.is_writable:
            yield error(
                message=f"this node cannot write checkpoints to {folder.path}",
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


def check_container(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report an image without a network plugin, and a Python from outside the image."""
    if not survey.software.container:
        return
    has_slingshot = any(each.kind == "slingshot" and each.is_up for each in survey.network.interfaces)
    if wanted.num_nodes > 1 and has_slingshot and not survey.network.plugins:
        yield warning(
            message="the image has no plugin for Slingshot: the collectives use sockets",
            evidence=survey.software.container,
            remedy="use the machine's own image, or bind the plugin and put it on LD_LIBRARY_PATH",
            source="the LUMI slides on extreme scale: containers from elsewhere",
        )
    home = survey.settings.variables.get("HOME", "")
    place = survey.software.places.get("torch", "")
    if home and home != "/" and place.startswith(home + "/.local"):
        yield warning(
            message="torch comes from ~/.local, not from the image",
            evidence=f"{place} inside {survey.software.container}",
            remedy="export PYTHONNOUSERSITE=1",
            source="csc-user-guide: Python in containers",
        )


def check_binds(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report paths that the machine's convention binds and that are missing in the container."""
    missing = [path for path in wanted.binds if path not in survey.software.binds]
    if survey.software.container and missing:
        yield warning(
            message=f"not bound into the container: {', '.join(missing)}",
            evidence=survey.software.container,
            remedy=f"singularity exec --bind {','.join(missing)} …",
            source=f"echelon machines {wanted.machine}",
        )
