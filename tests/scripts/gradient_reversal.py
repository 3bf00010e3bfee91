"""Domain adaptation: an autograd function turns the gradient around between features and the domain's classifier."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.neg() * ctx.strength, None


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.classes = nn.Linear(16, 3)
        self.domains = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x, strength):
        features = self.features(x)
        return self.classes(features), self.domains(Reverse.apply(features, strength))


torch.manual_seed(0)
source = TensorDataset(torch.randn(200, 8), torch.randint(0, 3, (200,)))
target = TensorDataset(torch.randn(200, 8) + 0.5, torch.zeros(200, dtype=torch.long))
source_loader = DataLoader(source, batch_size=20, shuffle=True)
target_loader = DataLoader(target, batch_size=20, shuffle=True)
model = Network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
criterion = nn.CrossEntropyLoss()
step = 0
for _ in range(5):
    for (x, labels), (other, _) in zip(source_loader, target_loader, strict=True):
        strength = step / 50
        classes, domains = model(x, strength)
        _, other_domains = model(other, strength)
        loss = criterion(classes, labels) + criterion(domains, torch.zeros(len(x), dtype=torch.long))
        loss = loss + criterion(other_domains, torch.ones(len(other), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
