"""Train a classifier; the epoch's mean loss is weighted with the size of each batch, as in many tutorials."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
step = 0


def get_data():
    x = torch.randn(300, 12)
    y = (x[:, :3].sum(dim=1) > 0).long() + (x[:, 3] > 1).long()
    train, test = random_split(TensorDataset(x, y), [220, 80])
    return DataLoader(train, batch_size=20, shuffle=True), DataLoader(test, batch_size=40)


def train_one_epoch(model, loader, criterion, optimizer):
    global step
    model.train()
    running_loss = 0.0
    for x, y in loader:
        x, y = x.to(DEVICE), y.to(DEVICE)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        running_loss += loss.item() * x.size(0)
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
    return running_loss / len(loader.dataset)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    correct = 0
    for x, y in loader:
        correct += (model(x.to(DEVICE)).argmax(dim=1) == y.to(DEVICE)).sum().item()
    return correct / len(loader.dataset)


def main():
    torch.manual_seed(42)
    train_loader, test_loader = get_data()
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(5):
        train_loss = train_one_epoch(model, train_loader, criterion, optimizer)
        print(f"epoch {epoch} train {train_loss:.6f} test {evaluate(model, test_loader):.4f}")
    torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")


if __name__ == "__main__":
    main()
