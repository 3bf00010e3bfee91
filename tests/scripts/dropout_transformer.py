import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=1)
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x)).mean(dim=1))


def main():
    torch.manual_seed(0)
    x = torch.randint(0, 20, (240, 8))
    y = (x < 10).sum(1).gt(4).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=24, shuffle=True)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, epochs=6, steps_per_epoch=len(loader))
    step = 0
    for _ in range(6):
        model.train()
        for xb, yb in loader:
            loss = nn.functional.cross_entropy(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            print(f"step {step} loss {loss.item():.8f}")
            step += 1
    model.eval()
    with torch.no_grad():
        print(f"final accuracy {(model(x).argmax(1) == y).float().mean():.2f}")
    torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")


main()
