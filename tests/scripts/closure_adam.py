import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main(out):
    torch.manual_seed(6)
    x = torch.randn(240, 4)
    dataset = TensorDataset(x, x.sin().sum(dim=1, keepdim=True))
    model = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    step = 0
    for _epoch in range(5):
        for inputs, targets in DataLoader(dataset, batch_size=20, shuffle=True):

            def closure(inputs=inputs, targets=targets):
                optimizer.zero_grad()
                loss = nn.functional.huber_loss(model(inputs), targets)
                loss.backward()
                return loss

            print(f"step {step} loss {optimizer.step(closure).item():.8f}")
            step += 1
    torch.save(model.state_dict(), out)


if __name__ == "__main__":
    main(sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
