"""A teacher is trained, then a student learns from it."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(200, 8)
y = (x[:, :4].pow(2).sum(1) > 4).long()
loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
step = 0


def fit(model, loss_fn, lr, epochs):
    global step
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(epochs):
        model.train()
        for a, b in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(a), a, b)
            loss.backward()
            optimizer.step()
            print(f"step {step} loss {loss.item():.8f}")
            step += 1


teacher = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 2))
fit(teacher, lambda out, _, b: F.cross_entropy(out, b), 3e-3, 4)
teacher.eval()
student = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def distill(out, a, b, t=2.0):
    with torch.no_grad():
        soft = F.softmax(teacher(a) / t, dim=1)
    return F.kl_div(F.log_softmax(out / t, dim=1), soft, reduction="batchmean") * t * t + F.cross_entropy(out, b)


fit(student, distill, 3e-3, 3)
torch.save({"teacher": teacher.state_dict(), "student": student.state_dict()},
           sys.argv[-1] if len(sys.argv) > 1 else "model.pt")  # fmt: skip
