"""Let some ranks of a plan be profiled: by torch.profiler inside of them, or by a tool that starts them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from echelon.errors import UsageError
from echelon.node import profiler
from echelon.orders import codec, profile
from echelon.spec import Plan

TORCH = "torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A profiler that starts the program that it records."""

    programs: Mapping[str, tuple[str, ...]]
    """The programs that can do it, the best first, each with its command line; {folder} and {rank} are filled in."""
    how_to_get: str
    how_to_see: str


TOOLS = {
    # https://rocm.docs.amd.com/projects/rocprofiler-sdk/en/latest/quick_guide.html, and rocprof's command reference
    "rocprof": Tool(
        programs={
            "rocprofv3": (
                "rocprofv3", "--hip-trace", "--kernel-trace", "--memory-copy-trace", "--stats",
                "--output-format", "csv", "pftrace", "-d", "{folder}", "-o", "rank-{rank}", "--",
            ),
            "rocprof": ("rocprof", "--hip-trace", "--stats", "-o", "{folder}/rank-{rank}.csv"),
        },
        how_to_get="it comes with ROCm: module load rocm, or export PATH=$PATH:/opt/rocm/bin",
        how_to_see="ui.perfetto.dev shows traces; the tables are CSV",
    ),
    # https://docs.nvidia.com/nsight-systems/UserGuide/index.html
    "nsys": Tool(
        programs={
            "nsys": (
                "nsys", "profile", "-t", "cuda,nvtx,osrt", "-s", "none", "-f", "true", "-o", "{folder}/rank-{rank}",
            )
        },
        how_to_get="it comes with the CUDA toolkit, or as NVIDIA Nsight Systems: module load cuda",
        how_to_see="nsys stats FILE, or the program Nsight Systems",
    ),
    # https://github.com/benfred/py-spy
    "py-spy": Tool(
        programs={
            "py-spy": (
                "py-spy", "record", "--nonblocking", "-r", "20", "-f", "speedscope",
                "-o", "{folder}/rank-{rank}.speedscope.json", "--",
            )
        },
        how_to_get="pip install py-spy",
        how_to_see="www.speedscope.app shows it",
    ),
}  # fmt: skip
NAMES = (TORCH, *TOOLS)
MOST_RANKS = 1 << 20


def ordered(
    plan: Plan, order: profile.ProfileOrder, tool: str, *, find: Callable[[str], str | None] = shutil.which
) -> Plan:
    """Return a plan whose ranks follow the order; raise UsageError if they cannot. `find` finds a program."""
    num_ranks = plan.num_nodes * plan.ranks_per_node
    order = order._replace(
        ranks=tuple((low, high if high >= 0 else (num_ranks or MOST_RANKS) - 1) for low, high in order.ranks)
    )
    _refuse_other_ranks(plan, order)
    if not plan.is_python:
        raise UsageError(
            f"--tool {tool} profiles Python scripts, and {plan.argv[0]} is a program",
            hint="""echelon run -- sh -c 'test "$RANK" = 0 && set -- nsys profile -o rank-0 "$@"; exec "$@"' sh """
            + plan.argv[0],
        )
    if tool == TORCH:
        variable = (profile.VARIABLE, codec.write(order))
    else:
        variable = (profiler.VARIABLE, json.dumps({"ranks": order.ranks, "command": command(plan, tool, find)}))
    return replace(plan, environ=(*plan.environ, variable))


def command(plan: Plan, tool: str, find: Callable[[str], str | None]) -> tuple[str, ...]:
    """Return the command line of a tool; raise UsageError if it is not installed."""
    programs = TOOLS[tool].programs
    if plan.container is not None:  # an image has its own programs
        return next(iter(programs.values()))
    for name, words in programs.items():
        if find(name) is not None:
            return words
    raise UsageError(f"--tool {tool}: {' or '.join(programs)} is not installed here", hint=TOOLS[tool].how_to_get)


def _refuse_other_ranks(plan: Plan, order: profile.ProfileOrder) -> None:
    """Raise UsageError for ranks that the run does not have, as far as its size is known before it starts."""
    num_ranks = plan.num_nodes * plan.ranks_per_node
    beyond = [high for _, high in order.ranks if high >= num_ranks]
    if num_ranks and beyond:
        ranks = "1 rank, rank 0" if num_ranks == 1 else f"{num_ranks} ranks, 0 to {num_ranks - 1}"
        raise UsageError(
            f"--ranks names rank {beyond[0]}, but this run has {ranks}",
            hint=f"--ranks {num_ranks - 1}   or start more: -n {beyond[0] // plan.num_nodes + 1}",
        )


def files(directory: str, rank: int) -> list[str]:
    folder = os.path.join(directory, profile.FOLDER)
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    is_of_rank = [name for name in names if name.startswith((f"rank-{rank}.", f"rank-{rank}_"))]
    return [os.path.join(folder, name) for name in is_of_rank if ".part." not in name]
