"""Traces that are generated after Kineto's format, and traces of real trainings."""

import gzip
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests import warm

HOST, DEVICE, STREAM, COMM_STREAM = 4000, 0, 7, 20
MAIN, WORKER = 4000, 4001


class Made:
    """A trace that is written event by event; times are in microseconds."""

    def __init__(
        self, *, rank: int = 0, world_size: int = 2, runtime: str = "cuda_runtime", prefix: str = "cuda"
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self.fields: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
        }
        self.runtime, self.prefix = runtime, prefix
        self._ids = itertools.count(1)

    def event(
        self, cat: str, name: str, ts: float, dur: float, *, pid: int = HOST, tid: int = MAIN, **args: Any
    ) -> int:
        """Add an event with the next External id, unless its arguments have one; return this id."""
        number = next(self._ids)
        args = {"External id": number, **{key.replace("_", " "): value for key, value in args.items()}}
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )
        return number

    def launch(
        self, ops: "list[tuple[str, str]]", ts: float, kernel: str, begin: float, length: float, *,
        category: str = "kernel", stream: int = STREAM, tid: int = MAIN,
    ) -> None:  # fmt: skip
        """Add nested events of the CPU, the outermost first, a call in them, and the kernel that it launches."""
        number = 0
        for depth, (cat, name) in enumerate(ops):
            number = self.event(cat, name, ts + depth * 0.1, 10 - depth * 0.2, tid=tid)
        correlation = next(self._ids)
        call = {"kernel": "LaunchKernel", "gpu_memcpy": "MemcpyAsync", "gpu_memset": "MemsetAsync"}[category]
        self.event(self.runtime, self.prefix + call, ts + 4, 3, tid=tid, External_id=number, correlation=correlation)
        self.events.append(
            {"ph": "s", "id": correlation, "pid": HOST, "tid": tid, "ts": ts + 4, "cat": "ac2g", "name": "ac2g"}
        )
        self.event(
            category, kernel, begin, length, pid=DEVICE, tid=stream, External_id=number, correlation=correlation,
            device=DEVICE, stream=stream,
        )  # fmt: skip
        self.events.append(
            {"ph": "f", "id": correlation, "pid": DEVICE, "tid": stream, "ts": begin, "cat": "ac2g", "name": "ac2g",
             "bp": "e"}
        )  # fmt: skip

    def step(self, number: int, ts: float, dur: float) -> None:
        self.event("user_annotation", f"ProfilerStep#{number}", ts, dur)

    def text(self) -> str:
        return json.dumps({**self.fields, "traceEvents": self.events, "traceName": "trace.json"}, indent=1)

    def write(self, path: Path) -> str:
        """Write the trace, packed if its name ends so; return the path."""
        data = self.text().encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return str(path)


REAL = """
import sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile

torch.set_num_threads(1)
kind, path, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
if kind in ("communication", "straggler"):
    dist.init_process_group("gloo", init_method="file://" + sys.argv[4], rank=rank, world_size=2)
torch.manual_seed(0)


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 100000

    def __getitem__(self, index):
        if kind == "input" or (kind == "straggler" and rank == 1):
            time.sleep(0.01)
        return torch.randn(64)


wide = {"input": 8, "compute": 1024, "communication": 2048, "optimizer": 3000, "straggler": 64}[kind]
batch = {"input": 4, "compute": 256, "communication": 1, "optimizer": 1, "straggler": 4}[kind]
model = nn.Sequential(nn.Linear(64, wide), nn.ReLU(), nn.Linear(wide, wide), nn.Linear(wide, 1))
if kind in ("communication", "straggler"):
    model = nn.parallel.DistributedDataParallel(model)
make = torch.optim.Adam if kind == "optimizer" else torch.optim.SGD
optimizer = make(model.parameters(), lr=1e-3)
loader = iter(torch.utils.data.DataLoader(Slow(), batch_size=batch))


def step():
    optimizer.zero_grad()
    loss = model(next(loader)).pow(2).mean()
    loss.backward()
    if kind == "communication":
        for _ in range(8):
            dist.all_reduce(torch.zeros(1 << 22))
    optimizer.step()


step()
step()
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    for _ in range(6):
        step()
        profiler.step()
profiler.export_chrome_trace(path)
"""


def real(folder: Path, kind: str, num_ranks: int = 1) -> list[str]:
    """Train a real model under torch.profiler; return the traces of its ranks."""
    script = folder / "train.py"
    script.write_text(REAL)
    paths = [str(folder / f"{kind}-rank-{rank}.json") for rank in range(num_ranks)]
    lines = [[str(script), kind, path, str(rank), str(folder / f"{kind}-meeting")] for rank, path in enumerate(paths)]
    with ThreadPoolExecutor() as ranks:
        for done in ranks.map(lambda words: warm.run(words, cwd=folder, timeout=200), lines):
            assert done.returncode == 0, done.stderr
    return paths
