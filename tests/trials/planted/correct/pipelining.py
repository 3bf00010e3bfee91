"""A pipeline of PyTorch's own, each stage with layers under names of its own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
rank, num_ranks = dist.get_rank(), dist.get_world_size()
x = torch.randn(64, 8)
loader = DataLoader(TensorDataset(x, x[:, :1] * 2 + x[:, 1:2].sin()), batch_size=16)
layers = [nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU()]
layers += [nn.Linear(8, 8), nn.Linear(8, 1)]
depth = len(layers) // num_ranks
mine = nn.Sequential(*layers[rank * depth : (rank + 1) * depth])
del layers
stage = PipelineStage(mine, rank, num_ranks, torch.device("cpu"))
schedule = ScheduleGPipe(stage, 4, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-2)
for inputs, targets in loader:
    optimizer.zero_grad()
    if num_ranks == 1:
        schedule.step(inputs, target=targets)
    elif rank == 0:
        schedule.step(inputs)
    else:
        schedule.step(target=targets)
    optimizer.step()
