"""How Horovod's ranks meet: through gloo, at a store that echelon serves, or only through MPI."""

from __future__ import annotations

import importlib.util
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from echelon.spec import Job, Plan, Reason

if TYPE_CHECKING:
    from echelon.script.imports import Imports

STORE = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
"""The address of another launcher's store; a Horovod built with gloo contains this name."""
CONTROLLER = "HOROVOD_CONTROLLER"


def with_store(job: Job, plan: Plan, imports: Imports, environ: Mapping[str, str]) -> Plan:
    """Return the plan, with a store for its ranks if the script uses Horovod."""
    is_alone = plan.num_nodes * plan.ranks_per_node == 1
    by_mpi = job.launcher is not None and bool(job.launcher.mpi)
    if is_alone or by_mpi or STORE in environ or not _is_imported(imports) or why_only_mpi(job, environ):
        return plan
    why = "the script imports it, and rank 0's agent does the work of horovodrun"
    return replace(
        plan, serves_horovod=True, reasons=(*plan.reasons, Reason(what="horovod", value="meets by gloo", why=why))
    )


def _is_imported(imports: Imports) -> bool:
    """Say whether the script or one of its own modules imports Horovod anywhere."""
    return "horovod" in imports.uses | {name.partition(".")[0] for name in imports.local}


def why_only_mpi(job: Job, environ: Mapping[str, str]) -> str:
    """Return why the ranks can meet only through MPI; empty if gloo works, or if the build cannot be read."""
    if environ.get(CONTROLLER, "").casefold() == "mpi":
        return f"{CONTROLLER}={environ[CONTROLLER]} is set"
    libraries = [] if job.container else list(_libraries())
    if libraries and not any(_has(library, STORE.encode()) for library in libraries):
        return "this Horovod is built without gloo"
    return ""


def _libraries() -> Iterator[str]:
    """Yield Horovod's compiled libraries, one for each framework that it was built for."""
    try:
        spec = importlib.util.find_spec("horovod")
    except (ImportError, ValueError):
        return
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for framework in ("torch", "tensorflow", "mxnet"):
            try:
                names = os.listdir(os.path.join(folder, framework))
            except OSError:
                continue
            yield from (os.path.join(folder, framework, name) for name in names if name.endswith(".so"))


def _has(path: str, text: bytes) -> bool:
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(text) >= 0
    except (OSError, ValueError):
        return True  # a file that cannot be read tells nothing
