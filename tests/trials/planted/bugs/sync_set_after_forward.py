"""Whether to exchange is set between forward and backward, and DistributedDataParallel looks at it in forward.

From https://github.com/karpathy/build-nanogpt/issues/30
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 8)
data = TensorDataset(x, x[:, :1] * 2 + x[:, 1:2].sin())
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for place, (inputs, targets) in enumerate(loader):
        is_last = (place + 1) % 2 == 0
        model.require_backward_grad_sync = False
        loss = nn.functional.mse_loss(model(inputs), targets) / 2
        model.require_backward_grad_sync = is_last
        loss.backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
