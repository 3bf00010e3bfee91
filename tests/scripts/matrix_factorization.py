"""Matrix factorization with biases: embeddings of users and items, a dot product of rows, weight decay in the loss."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MF(nn.Module):
    def __init__(self, num_users, num_items):
        super().__init__()
        self.user_emb, self.item_emb = nn.Embedding(num_users, 6), nn.Embedding(num_items, 6)
        self.user_bias, self.item_bias = nn.Embedding(num_users, 1), nn.Embedding(num_items, 1)
        self.user_emb.weight.data.uniform_(0, 0.05)
        self.item_emb.weight.data.uniform_(0, 0.05)

    def forward(self, u, v):
        return (self.user_emb(u) * self.item_emb(v)).sum(1) + self.user_bias(u).squeeze() + self.item_bias(v).squeeze()


torch.manual_seed(0)
users, items, ratings = torch.randint(30, (300,)), torch.randint(20, (300,)), torch.rand(300) * 4 + 1
model = MF(30, 20)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
step = 0
for _epoch in range(5):
    total, count = 0.0, 0
    for u, v, r in DataLoader(TensorDataset(users, items, ratings), batch_size=25, shuffle=True):
        y_hat = model(u, v)
        loss = nn.functional.mse_loss(y_hat, r) + 1e-4 * sum(p.pow(2).sum() for p in model.parameters())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total, count = total + loss.item() * u.shape[0], count + u.shape[0]
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
    print(f"mean {total / count:.5f}")
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
