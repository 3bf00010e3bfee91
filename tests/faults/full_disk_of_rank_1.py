"""Rank 1 saves snapshots on a disk that is soon full, and rank 0 waits for it."""

import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
weights = torch.zeros(400, 400)
for epoch in range(20):
    dist.all_reduce(weights)
    if os.environ["RANK"] == "1":
        torch.save(weights, f"disk/{epoch}")
sys.exit("the disk was large enough")
