"""A masked language model whose head computes only the masked tokens: how many they are depends on the batch."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
ids = torch.randint(20, (96, 9))
labels = torch.where(torch.rand(96, 9) < 0.4, ids, -100)


class MaskedModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, ids, labels):
        masked = labels != -100
        logits = self.head(self.embedding(ids)[masked])
        return F.cross_entropy(logits, labels[masked]), logits


model = MaskedModel()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
step = 0
for _epoch in range(13):
    for x, y in DataLoader(TensorDataset(ids, labels), batch_size=24, shuffle=True):
        loss, logits = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f} logits {tuple(logits.shape)}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
