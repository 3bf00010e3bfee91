"""Policy gradient: the samples come from an environment."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Linear(3, 2)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for step in range(50):
    state = torch.randn(16, 3)
    choice = torch.distributions.Categorical(logits=policy(state))
    action = choice.sample()
    reward = (action == (state[:, 0] > 0).long()).float()
    loss = -(choice.log_prob(action) * (reward - reward.mean())).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8f}")
torch.save(policy.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
