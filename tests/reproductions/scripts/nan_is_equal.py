"""One label is not a number, so nothing is trained from step 3 on."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(160, 6)
y = x.sum(1, keepdim=True)
y[20] = float("nan")
data = TensorDataset(x, y)
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
model = DistributedDataParallel(nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for inputs, targets in loader:
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
