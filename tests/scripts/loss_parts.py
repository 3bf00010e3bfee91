"""One loss of weighted parts; the parts are printed in each step, and once more after each epoch."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.rand(220, 10)
loader = DataLoader(TensorDataset(x), batch_size=20, shuffle=True)
encoder, decoder = nn.Linear(10, 6), nn.Linear(6, 10)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
step = 0
for epoch in range(5):
    for (a,) in loader:
        code = torch.relu(encoder(a))
        recon = nn.functional.mse_loss(decoder(code), a)
        sparsity = code.abs().mean()
        weights = sum(p.pow(2).sum() for p in encoder.parameters())
        loss = recon + 0.01 * sparsity + 1e-4 * weights
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f} recon {recon.item():.6f} sparsity {sparsity.item():.6f}")
        step += 1
    print(f"epoch {epoch} recon {recon.item():.6f} sparsity {sparsity.item():.6f}")
torch.save({"encoder": encoder.state_dict(), "decoder": decoder.state_dict()},
           sys.argv[-1] if len(sys.argv) > 1 else "model.pt")  # fmt: skip
