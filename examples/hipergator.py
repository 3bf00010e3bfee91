"""From one device to all of them in seven steps, as the tutorial of HiPerGator goes: a script that grows.

    python hipergator.py --step 1                     one device
    python hipergator.py --step 6 --processes 2       two, which the script starts itself
    echelon run -n 2 hipergator.py                    step 7: two ranks on this machine
    salloc --nodes=2 echelon run -n 2 hipergator.py   step 7: two on each of two nodes

Step by step: 1 one device; 2 processes that meet; 3 DistributedDataParallel; 4 each process its share of the data;
5 in another order each epoch; 6 one process saves; 7 a launcher starts the processes, on any number of nodes.
What has changed can be read in the output of every process: `grep step hipergator.py` shows the lines.
"""

import argparse
import os
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Numbers(Dataset):
    """Rows of numbers, whose sum is to be learned."""

    def __init__(self, rows: int) -> None:
        self.rows = torch.randn(rows, 20, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return row, self.rows[row], self.rows[row].sum().unsqueeze(0)


def join(rank: int, options: argparse.Namespace, device: torch.device) -> None:
    """Meet the other processes."""
    if options.step < 7:
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(options.port))
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=options.processes)


def train(rank: int, options: argparse.Namespace) -> None:
    """Train in one process, with what the steps up to this one have added."""
    local_rank = int(os.environ["LOCAL_RANK"]) if options.step >= 7 else rank  # they differ on the second node
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    model: nn.Module = nn.Linear(20, 1).to(device)
    dataset, sampler = Numbers(options.rows), None
    if options.step >= 2:  # step 2: processes that meet
        join(rank, options, device)
    if options.step >= 3:  # step 3: the gradients become the mean over all processes
        model = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    if options.step >= 4:  # step 4: each process has its share of the rows
        sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=options.batch_size, shuffle=sampler is None, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    for epoch in range(options.epochs):
        if options.step >= 5:  # step 5: another order each epoch
            sampler.set_epoch(epoch)
        seen: list[int] = []
        for rows, numbers, sums in loader:
            loss = F.mse_loss(model(numbers.to(device)), sums.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += rows.tolist()
        print(f"[{rank}] epoch {epoch}: {len(loader)} steps, rows {seen[:4]} ..., loss {loss.item():.4f}", flush=True)
        if options.step < 6 or rank == 0:  # step 6: one process saves
            inner = model.module if options.step >= 3 else model
            torch.save(inner.state_dict(), options.out / "hipergator.pt")
            print(f"[{rank}] saved", flush=True)
    if options.step >= 2:
        time.sleep(0.3)  # without a GPU: torch 2.13's gloo threads must let go of their last work first
        dist.destroy_process_group()


def free_port() -> int:
    """Return a port that nobody listens on; the tutorial has 12355, which is taken when two run at once."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", type=int, choices=range(1, 8), default=7)
    parser.add_argument("--processes", type=int, default=torch.cuda.device_count() or 1, help="in steps 2 to 6")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=32, help="rows in a step of one process")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("ECHELON_RUN_DIR", ".")))
    options = parser.parse_args()
    options.port = free_port()
    if options.step == 1:
        train(0, options)
    elif options.step < 7:
        mp.spawn(train, args=(options,), nprocs=options.processes)
    else:  # step 7: a launcher has started this process, and says which one it is
        options.processes = int(os.environ["WORLD_SIZE"])
        train(int(os.environ["RANK"]), options)


if __name__ == "__main__":
    main()
