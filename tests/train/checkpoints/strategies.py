"""Trains with run.loader() or under a strategy, and saves with run.checkpoint(); the arguments: which, and dropout."""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import echelon

kind, dropout = sys.argv[1], float(sys.argv[2])
run = echelon.start()
size = int(os.environ["WORLD_SIZE"])
torch.manual_seed(0)
x = torch.randn(192, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 1))
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=24, shuffle=True)
if kind == "loader":
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, loader = run.model(model, optimizer), run.loader(loader)
    checkpoint = run.checkpoint(model=model, optimizer=optimizer, every="3steps")
else:
    strategy = echelon.Strategy(shard=size) if kind == "shard" else echelon.Strategy(replicate=size)
    blocks = ["0", "3"] if kind == "shard" else ()
    trained = run.parallelize(model, strategy, loss=nn.functional.mse_loss, blocks=blocks)
    optimizer = trained.optimize(torch.optim.AdamW, lr=1e-2)
    loader = trained.loader(loader)
    checkpoint = run.checkpoint(trained=trained, every="3steps")
for _epoch in checkpoint.epochs(3):
    for inputs, targets in checkpoint.batches(loader):
        if kind == "loader":
            loss = (model(inputs) - targets).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        else:
            loss = trained.step(inputs, targets, rows=True).loss
        number = checkpoint.step_number + 1
        value = float(loss)
        if run.is_main:
            print(f"step {number} loss {value:.7f}", flush=True)
        checkpoint.wait()
        if number == int(os.environ.get("FAILS_AT", "0")):
            torch.distributed.barrier()  # rank 0 has published
            os._exit(9)
