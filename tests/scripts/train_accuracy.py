"""Print loss and accuracy of training as a person does who looks at both."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def accuracy(logits, target):
    return (logits.argmax(dim=1) == target).float().mean().item()


torch.manual_seed(0)
x = torch.randn(234, 6)
y = (x @ torch.randn(6, 3)).argmax(dim=1)
loader = DataLoader(TensorDataset(x, y), batch_size=24, shuffle=True)
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
step = 0
images, labels = next(iter(loader))
print("a batch:", tuple(images.shape), tuple(labels.shape))
for epoch in range(6):
    correct, total = 0, 0
    for a, b in loader:
        logits = model(a)
        loss = nn.functional.cross_entropy(logits, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += (logits.argmax(1) == b).sum().item()
        total += b.size(0)
        print(f"step {step} loss {loss.item():.8f}")
        print(f"batch accuracy {accuracy(logits, b):.4f}")
        step += 1
    print(f"epoch {epoch} accuracy {100 * correct / total:.2f} % of {total}")
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
