"""Compare `echelon fit` with what a GPU took: `PYTHONPATH=src:. python -m benchmarks.gpu.estimates [MODEL …]`.

The trainings of peaks.jsonl are traced here, without a GPU. For each model: how far the bytes that the replayed
allocator reserves are from torch.cuda.max_memory_reserved() on the GPU. A model whose package is not installed is named
and left out.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.gpu.peaks import PROGRAM
from echelon.errors import EchelonError
from echelon.estimate.devices import CONVOLUTION, Device
from echelon.estimate.layout import Layout
from echelon.estimate.verdict import judge
from echelon.host import Host
from echelon.launch import fit
from echelon.orders.trace import TraceOrder

PEAKS = Path(__file__).with_name("peaks.jsonl")
H200 = Device(chip="H200", memory_bytes=141 << 30)


def main(names: list[str]) -> None:
    """Print a line for each training, and a row for each model."""
    differences: dict[str, list[float]] = defaultdict(list)
    for row in map(json.loads, PEAKS.read_text("utf-8").splitlines()):
        if "bytes" not in row or (names and row["model"] not in names):
            continue
        words = [row["model"], "--batch", str(row["batch"]), "--precision", row["precision"]]
        words += ["--optimizer", row["optimizer"], *(["--checkpointing"] if row["checkpointing"] else [])]
        try:
            traced = fit.trace(TraceOrder(target=str(PROGRAM), arguments=tuple(words)), Host())
        except EchelonError as error:
            print(f"{' '.join(words)}: left out: {error.message}", file=sys.stderr)
            continue
        judged, measured = judge(traced.log, Layout(), H200), row["bytes"]["reserved"]
        reserved = judged.memory.reserved_bytes
        work = sum(part.high_bytes for part in judged.overheads if part.kind == CONVOLUTION)
        estimates = {"": reserved} | ({", largest workspaces": reserved + work} if work else {})
        for how, estimated in estimates.items():
            differences[row["model"] + how].append(estimated / measured - 1)
            print(f"{' '.join(words)}{how}: {measured:,} B measured, {estimated / measured - 1:+.1%}", flush=True)
    print("| model | trainings | reserved, estimated against measured |\n|---|---|---|")
    for model, values in differences.items():
        print(f"| {model} | {len(values)} | {min(values):+.1%} to {max(values):+.1%} |")


if __name__ == "__main__":
    main(sys.argv[1:])
