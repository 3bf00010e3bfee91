"""One sequence in one batch, time in dim 0, as nn.RNN expects it by default."""

import torch
from torch import nn

torch.manual_seed(0)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.RNN(6, 16), nn.Linear(16, 4)

    def forward(self, x):
        states, _ = self.cell(x.transpose(0, 1))  # batch, time -> time, batch
        return self.head(states.transpose(0, 1))


model = Tagger()
x, y = torch.randn(1, 8, 6), torch.randint(4, (1, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(12):
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 3 == 2:
        print(step, f"{loss.item():.5f}")
