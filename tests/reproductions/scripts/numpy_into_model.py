"""The model takes numpy arrays; inside, attention wants time first (batch_first=False)."""

import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.attend, self.head = nn.Embedding(50, 16), nn.MultiheadAttention(16, 2), nn.Linear(16, 50)

    def forward(self, items):  # [batch, time]
        x = self.embed(torch.as_tensor(items)).transpose(0, 1)  # [time, batch, width]
        y, _ = self.attend(x, x, x, need_weights=False)
        return self.head((x + y).transpose(0, 1))  # [batch, time, items]


net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
items = torch.randint(0, 50, (64, 21))
for step in range(6):
    part = items[step * 8 : step * 8 + 16]
    loss = nn.functional.cross_entropy(net(part[:, :-1].numpy()).flatten(0, 1), part[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, f"{loss.item():.6f}")
