"""The trunk is in a wrapper and the head is not.

From https://github.com/deepinsight/insightface/issues/1430
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 16)

    def forward(self, x):
        return torch.relu(self.fc(x))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        return self.out(x)


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 8)
data = TensorDataset(x, x[:, :1] * 2 + x[:, 1:2].sin())
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
trunk = DistributedDataParallel(Trunk())
head = Head()
optimizer = torch.optim.AdamW([*trunk.parameters(), *head.parameters()], lr=1e-2)
for inputs, targets in loader:
    loss = nn.functional.mse_loss(head(trunk(inputs)), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
