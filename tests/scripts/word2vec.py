"""word2vec: skip-grams with negative samples, two embeddings, a loss that the model computes."""

import sys

import torch
import torch.nn.functional as F
from torch import nn


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.u, self.v = nn.Embedding(25, 8), nn.Embedding(25, 8)
        self.v.weight.data.zero_()

    def forward(self, center, context, negatives):
        u, v = self.u(center), self.v(context)
        score = F.logsigmoid((u * v).sum(1))
        negative = F.logsigmoid(-torch.bmm(self.v(negatives), u.unsqueeze(2)).squeeze(2)).sum(1)
        return -(score + negative).mean()


torch.manual_seed(0)
corpus = torch.randint(25, (600,))
model = SkipGram()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
for step in range(60):
    places = torch.randint(2, 598, (40,))
    offsets = torch.randint(1, 3, (40,)) * (torch.randint(0, 2, (40,)) * 2 - 1)
    loss = model(corpus[places], corpus[places + offsets], torch.randint(25, (40, 5)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8f}")
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
