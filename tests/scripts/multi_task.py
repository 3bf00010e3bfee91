"""Two tasks with a body in common, two losses and two backwards a step; the parts are printed after the epoch too."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(240, 8)
kind, value = (x[:, 0] > 0).long(), x[:, 1:3].prod(1, keepdim=True)
loader = DataLoader(TensorDataset(x, kind, value), batch_size=22, shuffle=True)
body = nn.Sequential(nn.Linear(8, 24), nn.ReLU())
classify, regress = nn.Linear(24, 2), nn.Linear(24, 1)
optimizer = torch.optim.Adam([*body.parameters(), *classify.parameters(), *regress.parameters()], lr=2e-3)
step = 0
for epoch in range(5):
    for a, k, v in loader:
        optimizer.zero_grad()
        h = body(a)
        loss1 = nn.functional.cross_entropy(classify(h), k)
        loss1.backward(retain_graph=True)
        loss2 = 0.3 * nn.functional.mse_loss(regress(h), v)
        loss2.backward()
        optimizer.step()
        total = loss1 + loss2
        print(f"step {step} loss {total.item():.8f} = {loss1.item():.6f} + {loss2.item():.6f}")
        step += 1
    print(f"epoch {epoch} last {loss1.item():.6f} {loss2.item():.6f} {total.item():.6f}")
torch.save({"body": body.state_dict(), "classify": classify.state_dict(), "regress": regress.state_dict()},
           sys.argv[-1] if len(sys.argv) > 1 else "model.pt")  # fmt: skip
