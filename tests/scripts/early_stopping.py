import copy
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad, self.weights = patience, float("inf"), 0, None

    def __call__(self, value, model):
        if value < self.best:
            self.best, self.bad, self.weights = value, 0, copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience


torch.manual_seed(4)
x = torch.randn(90, 10)
data = TensorDataset(x, (x[:, 0] + torch.randn(90) > 0).float())
train_loader = DataLoader(Subset(data, range(60)), batch_size=12, shuffle=True)
val_loader = DataLoader(Subset(data, range(60, 90)), batch_size=8)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.BCEWithLogitsLoss()
stopper = EarlyStopping(patience=3)
step = 0
for epoch in range(40):
    model.train()
    for a, b in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(a), b)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
    model.eval()
    val_loss = 0.0
    for a, b in val_loader:  # without no_grad(), as it happens
        val_loss += criterion(model(a), b).item()
    print(f"epoch {epoch} val {val_loss / len(val_loader):.6f}")
    if stopper(val_loss, model):
        print("stopped early")
        break
model.load_state_dict(stopper.weights)
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
