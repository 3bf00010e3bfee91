"""First and last stage share an embedding, and each trains its copy with its own part of the gradient.

From https://github.com/NVIDIA/Megatron-LM/issues/299
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)


dist.init_process_group("gloo")
torch.manual_seed(0)
rank, num_ranks = dist.get_rank(), dist.get_world_size()
tokens = torch.randint(0, 11, (64,))
loader = DataLoader(TensorDataset(tokens, (tokens * 3 + 1) % 11), batch_size=16)
net = Net()
is_first, is_last = rank == 0, rank == num_ranks - 1
mine = [net.embedding, *([net.first] if is_first else []), *([net.second] if is_last else [])]
optimizer = torch.optim.AdamW([one for layer in mine for one in layer.parameters()], lr=1e-2)
for inputs, targets in loader:
    optimizer.zero_grad()
    if is_first:
        given = net.embedding(inputs)
        came = torch.relu(net.first(given))
    if not is_last:
        dist.send(came.detach(), 1)
        gradient = torch.zeros_like(came)
        dist.recv(gradient, 1)
        came.backward(gradient)
    else:
        if not is_first:
            came = torch.zeros(len(inputs), 8)
            dist.recv(came, 0)
            came.requires_grad_()
        logits = net.second(came) @ net.embedding.weight.T
        loss = nn.functional.cross_entropy(logits, targets)
        loss.backward()
        if not is_first:
            dist.send(came.grad, 0)
    optimizer.step()
