"""First-order MAML: a copy of the model adapts to a task, and its gradients of the query go to the model."""

import copy
import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 20), nn.ReLU(), nn.Linear(20, 1))
outer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(50):
    amplitude, phase = torch.rand(1) * 2 + 0.5, torch.rand(1) * 3
    support, query = torch.rand(12, 1) * 6 - 3, torch.rand(12, 1) * 6 - 3
    learner = copy.deepcopy(model)
    inner = torch.optim.SGD(learner.parameters(), lr=0.02)
    for _ in range(2):
        inner.zero_grad()
        nn.functional.mse_loss(learner(support), amplitude * torch.sin(support + phase)).backward()
        inner.step()
    inner.zero_grad()
    loss = nn.functional.mse_loss(learner(query), amplitude * torch.sin(query + phase))
    loss.backward()
    outer.zero_grad()
    for parameter, adapted in zip(model.parameters(), learner.parameters(), strict=True):
        parameter.grad = adapted.grad.clone()
    outer.step()
    print(f"step {step} loss {loss.item():.8f}")
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
