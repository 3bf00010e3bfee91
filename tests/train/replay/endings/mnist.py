"""The MNIST example of pytorch/examples, with made-up digits: dropout, Adadelta, StepLR, an evaluation each epoch."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.conv2 = nn.Conv2d(8, 16, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(400, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = torch.flatten(self.dropout1(F.max_pool2d(x, 2)), 1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x)))), dim=1)


def train(model, loader, optimizer, epoch):
    model.train()
    for batch, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        print(f"step {epoch:2d} {batch:3d} loss {loss.item():.9e}", flush=True)


def test(model, loader, epoch):
    model.eval()
    total, correct = 0, 0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            total += F.nll_loss(output, target, reduction="sum").item()
            correct += (
                output.argmax(dim=1, keepdim=True).eq(target.view_as(output.argmax(1, keepdim=True))).sum().item()
            )
    print(f"test {epoch:2d} loss {total / len(loader.dataset):.9e} correct {correct:4d}", flush=True)


def main():
    torch.manual_seed(1)
    target = torch.randint(10, (768,))
    data = torch.randn(768, 1, 14, 14) * 0.3 + torch.randn(10, 1, 14, 14)[target]
    train_loader = DataLoader(TensorDataset(data[:640], target[:640]), batch_size=64, shuffle=True)
    test_loader = DataLoader(TensorDataset(data[640:], target[640:]), batch_size=64)
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, 5):
        train(model, train_loader, optimizer, epoch)
        test(model, test_loader, epoch)
        scheduler.step()
    torch.save(model.state_dict(), "model.pt")


main()
