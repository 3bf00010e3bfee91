"""A variational autoencoder with convolutions: sums as loss, samples after each epoch."""

import argparse

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--no-cuda", action="store_true", default=False)
args = parser.parse_args()
args.cuda = not args.no_cuda and torch.cuda.is_available()
torch.manual_seed(1)
device = torch.device("cuda" if args.cuda else "cpu")
kwargs = {"num_workers": 1, "pin_memory": True} if args.cuda else {}
train_loader = DataLoader(
    TensorDataset(torch.rand(64, 1, 28, 28), torch.zeros(64)), batch_size=args.batch_size, shuffle=True, **kwargs
)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 4, 2, 1), nn.Flatten())
        self.mu, self.logvar = nn.Linear(784, 20), nn.Linear(784, 20)
        self.up = nn.Linear(20, 784)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Sigmoid()
        )

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def forward(self, x):
        hidden = F.relu(self.encoder(x))
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar

    def decode(self, z):
        return self.decoder(F.relu(self.up(z)).view(-1, 16, 7, 7))


model = VAE().to(device)
optimizer = optim.Adam(model.parameters(), lr=1e-3)


def loss_function(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x.view(-1, 784), x.view(-1, 784), reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


for epoch in range(1, args.epochs + 1):
    model.train()
    train_loss = 0
    for _batch_idx, (data, _) in enumerate(train_loader):
        data = data.to(device)
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
    with torch.no_grad():
        sample = model.decode(torch.randn(64, 20).to(device)).cpu()
        torch.save(sample.view(64, 1, 28, 28), "sample_" + str(epoch) + ".pt")
    print(f"====> Epoch: {epoch} Average loss: {train_loss / len(train_loader.dataset):.4f}")
