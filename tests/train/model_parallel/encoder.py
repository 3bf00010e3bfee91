"""PyTorch's own layers in a model that has weights of its own, tells all layers something, and uses a weight twice."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, LENGTH, CLASSES = 32, 8, 24


class Net(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.tokens, self.start = nn.Embedding(CLASSES, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH) / 10)
        self.told, self.ends = nn.Linear(1, WIDTH), nn.ParameterList([nn.Parameter(torch.ones(WIDTH))])
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout, batch_first=True, norm_first=bool(i % 2))
            for i in range(4)
        )

    def forward(self, x, time):
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        x, told = self.tokens(x) + self.start[: x.size(1)], F.silu(self.told(time))[:, None]
        for layer in self.layers:
            x = layer(x + told, mask, is_causal=True)
        return F.linear(x * self.ends[0], self.tokens.weight)


torch.manual_seed(5)
model = Net(0.0 if "still" in sys.argv else 0.1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _step in range(4):
    model.train()
    x, time = torch.randint(CLASSES, (8, LENGTH + 1)), torch.rand(8, 1)
    loss = F.cross_entropy(model(x[:, :-1], time).flatten(0, 1), x[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    model.eval()
    with torch.no_grad():
        print(f"loss {loss.item():.6f} norm {norm:.5f} sum {model(x[:, :-1], time).square().sum():.3f}")
print(*(f"{p.double().square().sum():.6f}" for p in model.state_dict().values()))
