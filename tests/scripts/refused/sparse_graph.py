"""A graph network with sparse features and a sparse adjacency matrix of one graph."""

import torch
from torch import nn


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x, adjacency):
        h = torch.relu(torch.spmm(adjacency, self.first(x)))
        return torch.spmm(adjacency, self.second(h))


torch.manual_seed(0)
x, labels = torch.randn(40, 8).relu().to_sparse(), torch.randint(3, (40,))
adjacency = (torch.rand(40, 40) < 0.2).float().to_sparse()
model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(50):
    loss = nn.functional.cross_entropy(model(x, adjacency)[:20], labels[:20])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8f}")
