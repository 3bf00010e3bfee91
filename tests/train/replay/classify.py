"""A script for one device that carries much from step to step: best values, lists, schedules, averages and files."""

import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
random.seed(0)
x = torch.randn(203, 10)
y = (x.sum(1) > 0).long()
workers = int(sys.argv[1]) if len(sys.argv) > 1 else 0
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, num_workers=workers)
check = DataLoader(TensorDataset(x[:50], y[:50]), batch_size=25)
model = nn.Sequential(nn.Linear(10, 32), nn.LayerNorm(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
model.to(device)
scaler = torch.amp.GradScaler(device.type)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
log = open("log.csv", "w")  # noqa: SIM115
best, patience, step = 0.0, 0, 0
average, losses = None, []
for epoch in range(4):
    total = torch.zeros((), device=device)
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        total += loss.detach()
        average = loss.detach() if average is None else 0.9 * average + 0.1 * loss.detach()
        losses.append(loss.item())
        noise = torch.randn(1).item() + random.random()
        print(f"step {step} loss {losses[-1]:.8f} average {average:.6f} noise {noise:.4f}", flush=True)
        log.write(f"{step},{losses[-1]:.6f}\n")
        log.flush()
        step += 1
    schedule.step()
    model.eval()
    with torch.no_grad():
        correct = sum((model(a.to(device)).argmax(1) == b.to(device)).sum().item() for a, b in check)
    model.train()
    if correct > best:
        best, patience = correct, 0
        torch.save(model.state_dict(), "best.pt")
    else:
        patience += 1
    print(f"epoch {epoch} total {total.item():.6f} correct {correct} best {best} patience {patience}")
print(f"mean {sum(losses) / len(losses):.6f} of {len(losses)}")
torch.save(model.state_dict(), "model.pt")
