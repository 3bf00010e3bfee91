"""The training of survive_plain.py by hand: DDP, a snapshot every 20 steps, and a rank that kills itself once."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EVERY, SNAPSHOT = 20, "snapshot.pt"
victim, step_of_death = map(int, sys.argv[1:])
dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(4096, 32)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
loader = DataLoader(dataset, batch_size=32 // dist.get_world_size(), sampler=DistributedSampler(dataset))
module = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
model, optimizer, first = DistributedDataParallel(module), torch.optim.AdamW(module.parameters(), lr=1e-3), 0
if os.path.exists(SNAPSHOT):
    state = torch.load(SNAPSHOT)
    module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]
for step, (inputs, targets) in enumerate(loader, 1):
    if step <= first:
        continue
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.03)
    if dist.get_rank() == 0:
        print(f"step {step} at {time.time():.3f} loss {loss.item():.6f}", flush=True)
        if step % EVERY == 0:
            torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, SNAPSHOT)
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if is_first and (dist.get_rank(), step) == (victim, step_of_death):
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 100:
        break
dist.destroy_process_group()
