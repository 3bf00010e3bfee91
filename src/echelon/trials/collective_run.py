"""Measure the collectives of all nodes in a separate run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from echelon.errors import RunError, UsageError
from echelon.host import Host, own_command
from echelon.launch.run_directory import shared_folder

PROGRAM = "echelon.bandwidth.sweep"
ON_DEVICES = (8 << 10, 1 << 20, 16 << 20, 128 << 20)  # bytes; centres publish bus bandwidths for the last size
ON_CORES = (4 << 10, 256 << 10, 4 << 20)
SECONDS = 0.5
CURVE_SECONDS = 0.2  # for each size of an operation
SLOW_SHARE = {True: 0.7, False: 0.4}
"""A pair of nodes below this share of the faster pairs is slow: with devices; on cores, which other work disturbs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """The measurement, and the log of the collectives' library."""

    result: dict[str, Any]
    debug: tuple[str, ...]


def sweep(
    *, ranks_per_node: int, has_devices: bool, reference_bytes_per_second: float, timeout_seconds: float, host: Host
) -> Swept:
    """Measure all-reduce on all ranks and among pairs of nodes.

    Raise UsageError without PyTorch, and RunError if the run fails or takes too long.
    """
    sizes = ON_DEVICES if has_devices else ON_CORES
    share = SLOW_SHARE[has_devices]
    slow_above = sizes[-1] / (share * reference_bytes_per_second) if reference_bytes_per_second else 0.0
    words = (",".join(map(str, sizes)), f"{SECONDS:g}", f"{share:g}", f"{slow_above:g}")
    return _measured(words, ranks_per_node, timeout_seconds, host)


def curves(
    *, ranks_per_node: int, sizes: Sequence[int], operations: Sequence[str], timeout_seconds: float, host: Host
) -> Swept:
    """Measure operations on all ranks over a range of sizes in bytes.

    Raise UsageError without PyTorch, and RunError if the run fails or takes too long.
    """
    words = (",".join(map(str, sizes)), f"{CURVE_SECONDS:g}", "1", "0", *operations)
    return _measured(words, ranks_per_node, timeout_seconds, host)


def _measured(words: Sequence[str], ranks_per_node: int, timeout_seconds: float, host: Host) -> Swept:
    """Run the program with these words, behind the name of its result."""
    if find_spec("torch") is None:
        raise UsageError(
            "the Python of echelon has no PyTorch, which measures the collectives", hint="pip install torch"
        )
    with shared_folder("check", "the nodes leave their results there") as folder:
        out = os.path.join(folder, "sweep.json")
        command = [
            *own_command.command(), "run", "--run-dir", os.path.join(folder, "run"), "--scale", "off",
            "--check", "off", "--show", "none", "--timeout", f"{timeout_seconds:g}", "--env", "NCCL_DEBUG=INFO",
            "--env", "NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH", "--env", f"NCCL_DEBUG_FILE={folder}/nccl.%h.%p",
            *(("-n", str(ranks_per_node), "--share-devices") if ranks_per_node else ()),
            "-m", PROGRAM, out, *words,
        ]  # fmt: skip
        done = host.ask(command, timeout_seconds=timeout_seconds + 60)
        if done.exit_code != 0:
            raise RunError("the measurement of the collectives failed:", details=done.stderr.strip())
        with open(out, encoding="utf-8") as file:
            result: dict[str, Any] = json.load(file)
        return Swept(result=result, debug=tuple(_debug_lines(folder)))


def _debug_lines(folder: str) -> Iterator[str]:
    for name in sorted(os.listdir(folder)):
        if name.startswith("nccl."):
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                yield from (line.rstrip("\n") for line in file)
