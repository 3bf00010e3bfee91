import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Triplets(Dataset):
    def __init__(self, n=180):
        rng = random.Random(11)
        points = torch.randn(60, 6) + torch.arange(60).remainder(3).unsqueeze(1)
        self.rows = []
        for _ in range(n):
            a = rng.randrange(60)
            p = (a + 3 * rng.randrange(1, 19)) % 60
            self.rows.append((points[a], points[p], points[(a + 1) % 60]))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.PReLU(), nn.Linear(16, 4))

    def forward(self, anchor, positive, negative):
        return [self.layers(x) for x in (anchor, positive, negative)]


torch.manual_seed(2)
model = Embed()
loss_fn = nn.TripletMarginLoss(margin=1.0)
opt = torch.optim.Adagrad(model.parameters(), lr=0.01, initial_accumulator_value=0.1)
loader = DataLoader(Triplets(), batch_size=14, shuffle=True)
k = 0
for _ in range(5):
    for batch in loader:
        opt.zero_grad()
        loss = loss_fn(*model(*batch))
        loss.backward()
        opt.step()
        print(f"step {k} loss {loss:.8f}")
        k += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
