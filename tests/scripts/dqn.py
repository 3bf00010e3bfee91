"""DQN: a replay memory of its own, a target network, and gradients that are clamped in place."""

import random
import sys
from collections import deque, namedtuple

import torch
from torch import nn

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))
random.seed(0)
torch.manual_seed(0)
policy_net, target_net = (nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 2)) for _ in range(2))
target_net.load_state_dict(policy_net.state_dict())
target_net.eval()
optimizer = torch.optim.RMSprop(policy_net.parameters(), lr=0.001)
memory = deque(maxlen=500)
state, step = torch.randn(1, 4), 0
for t in range(180):
    if random.random() > 0.3:
        with torch.no_grad():
            action = policy_net(state).max(1)[1].view(1, 1)
    else:
        action = torch.tensor([[random.randrange(2)]], dtype=torch.long)
    next_state = 0.9 * state + 0.1 * (2 * action.float() - 1) + 0.1 * torch.randn(1, 4)
    finished = t % 30 == 29
    memory.append(Transition(state, action, None if finished else next_state, torch.tensor([-next_state.abs().mean()])))
    state = torch.randn(1, 4) if finished else next_state
    if len(memory) < 64 or t % 2:
        continue
    batch = Transition(*zip(*random.sample(memory, 64)))  # noqa: B905
    non_final_mask = torch.tensor([s is not None for s in batch.next_state], dtype=torch.bool)
    non_final_next_states = torch.cat([s for s in batch.next_state if s is not None])
    values = policy_net(torch.cat(batch.state)).gather(1, torch.cat(batch.action))
    next_values = torch.zeros(64)
    next_values[non_final_mask] = target_net(non_final_next_states).max(1)[0].detach()
    expected = next_values * 0.9 + torch.cat(batch.reward)
    loss = nn.SmoothL1Loss()(values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    for param in policy_net.parameters():
        param.grad.data.clamp_(-1, 1)
    optimizer.step()
    print(f"step {step} loss {loss.item():.8f}")
    step += 1
    if step % 10 == 0:
        target_net.load_state_dict(policy_net.state_dict())
torch.save(policy_net.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
