"""One graph, all of whose nodes are one batch, and edges between them."""

import sys

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 16), nn.Linear(16, 3)

    def forward(self, x, edges):
        x = torch.relu(self.first(x))
        neighbours = torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]])
        return self.second(x + neighbours)


torch.manual_seed(0)
x, edges, y = torch.randn(90, 5), torch.randint(90, (2, 300)), torch.randint(3, (90,))
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(50):
    loss = nn.functional.cross_entropy(model(x, edges)[:60], y[:60])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8f}")
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
