import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SkipGram(nn.Module):
    def __init__(self, words, dim):
        super().__init__()
        self.centre = nn.Embedding(words, dim, sparse=True)
        self.context = nn.Embedding(words, dim, sparse=True)

    def forward(self, centre, context, negative):
        c = self.centre(centre)
        positive = (c * self.context(context)).sum(-1)
        others = torch.bmm(self.context(negative), c.unsqueeze(2)).squeeze(2)
        return -(nn.functional.logsigmoid(positive) + nn.functional.logsigmoid(-others).sum(1)).mean()


torch.manual_seed(0)
centre = torch.randint(0, 40, (240,))
context = (centre + torch.randint(1, 4, (240,))) % 40
negative = torch.randint(0, 40, (240, 4))
model = SkipGram(40, 10)
optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.01)
step = 0
for _ in range(5):
    for batch in DataLoader(TensorDataset(centre, context, negative), batch_size=20, shuffle=True):
        loss = model(*batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
