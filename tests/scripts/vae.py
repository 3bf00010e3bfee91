import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(16, 32)
        self.fc21 = nn.Linear(32, 2)
        self.fc22 = nn.Linear(32, 2)
        self.fc3 = nn.Linear(2, 32)
        self.fc4 = nn.Linear(32, 16)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def forward(self, x):
        h = F.relu(self.fc1(x))
        mu, logvar = self.fc21(h), self.fc22(h)
        z = self.reparameterize(mu, logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("out", nargs="?", default="model.pt")
    args = parser.parse_args()
    torch.manual_seed(5)
    x = (torch.rand(320, 1) < torch.linspace(0.1, 0.9, 16)).float()
    loader = DataLoader(TensorDataset(x), batch_size=32, shuffle=True)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    step = 0
    for _epoch in range(6):
        model.train()
        for (batch,) in loader:
            recon, mu, logvar = model(batch)
            bce = F.binary_cross_entropy(recon, batch)
            kld = -0.5 * torch.mean(torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1))
            loss = bce + args.beta * kld
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step} loss {loss.item():.8f} bce {bce.item():.5f} kld {kld.item():.5f}")
            step += 1
    torch.save(model.state_dict(), args.out)


if __name__ == "__main__":
    main()
