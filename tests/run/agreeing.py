"""Four ranks train in all ways that PyTorch has, agree in all of their collectives, and write down their pages."""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from echelon.node import call_page, pulse

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
split, replicated = (nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)) for _ in range(2))
parallelize_module(split, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(split, mesh=mesh["data"])
wrapped = DistributedDataParallel(replicated)
rows = torch.ones(2, 8)
for step in range(3):
    split(rows).sum().backward()
    if rank == step:  # a loss of one rank alone
        (torch.ones(3, requires_grad=True) * 2).sum().backward()
    with wrapped.no_sync():
        wrapped(rows).sum().backward()
    wrapped(rows).sum().backward()
    if rank == 0:
        dist.send(rows, 1)
    elif rank == 1:
        dist.recv(rows, 0)
dist.all_gather_object([None] * 4, rank)
Path(f"page-{rank}.json").write_text(json.dumps(call_page.read(os.pread(pulse.DESCRIPTOR_OF_RANK, call_page.END, 0))))
