"""The same training with DistributedDataParallel, as one writes it by hand."""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--device", required=True)
parser.add_argument("--backend", required=True)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--width", type=int, default=256)
asked = parser.parse_args()

device = torch.device(asked.device)
if device.type == "cuda":
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
dist.init_process_group(asked.backend)
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(64, asked.width), nn.GELU(), nn.Dropout(0.0), nn.Linear(asked.width, asked.width), nn.GELU(),
    nn.Linear(asked.width, 8),
).to(device)  # fmt: skip
wrapped = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(64 * asked.steps, 64), torch.randint(8, (64 * asked.steps,)))
sampler = torch.utils.data.distributed.DistributedSampler(data, num_replicas=size, rank=rank)
seconds = []
for x, y in torch.utils.data.DataLoader(data, batch_size=64 // size, sampler=sampler):
    began = time.perf_counter()
    x, y = x.to(device), y.to(device)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(wrapped(x), y)
    loss.backward()
    optimizer.step()
    loss.item()
    seconds.append(time.perf_counter() - began)
if rank == 0:
    print(f"median {statistics.median(seconds[len(seconds) // 3 :]) * 1e3:.3f} ms")
dist.destroy_process_group()
