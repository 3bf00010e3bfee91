"""A neural ODE that is integrated outside of its model by Runge and Kutta's steps, all points of time in one tensor."""

import sys

import torch
from torch import nn


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, time, y):
        return self.net(y**3)


def integrate(field, start, times):
    states, y = [start], start
    for place in range(len(times) - 1):
        before, step = times[place], times[place + 1] - times[place]
        first = field(before, y)
        second = field(before + step / 2, y + step / 2 * first)
        y = y + step * second
        states.append(y)
    return torch.stack(states)


torch.manual_seed(0)
times = torch.linspace(0, 1, 6)
matrix = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])
field = Field()
optimizer = torch.optim.RMSprop(field.parameters(), lr=1e-3)
for step in range(50):
    start = torch.randn(20, 1, 2)
    with torch.no_grad():
        target = integrate(lambda _, y: y**3 @ matrix, start.clamp(-1, 1), times)
    optimizer.zero_grad()
    predicted = integrate(field, start.clamp(-1, 1), times)
    loss = (predicted - target).abs().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8f}")
torch.save(field.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
