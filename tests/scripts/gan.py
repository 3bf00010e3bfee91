import sys

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(999)
nz = 4
netG = nn.Sequential(nn.Linear(nz, 16), nn.ReLU(), nn.Linear(16, 2))
netD = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=0.001, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=0.001, betas=(0.5, 0.999))
dataloader = DataLoader(TensorDataset(torch.randn(240, 2) * 0.3 + 1), batch_size=24, shuffle=True)
fixed_noise = torch.randn(8, nz)
real_label, fake_label = 1.0, 0.0

step = 0
for _epoch in range(6):
    for data in dataloader:
        # (1) Update D network
        netD.zero_grad()
        real = data[0]
        b_size = real.size(0)
        label = torch.full((b_size,), real_label)
        errD_real = criterion(netD(real).view(-1), label)
        errD_real.backward()
        noise = torch.randn(b_size, nz)
        fake = netG(noise)
        label.fill_(fake_label)
        errD_fake = criterion(netD(fake.detach()).view(-1), label)
        errD_fake.backward()
        errD = errD_real + errD_fake
        optimizerD.step()
        # (2) Update G network
        netG.zero_grad()
        label.fill_(real_label)
        errG = criterion(netD(fake).view(-1), label)
        errG.backward()
        optimizerG.step()
        print(f"step {step} loss {errD.item():.8f} g {errG.item():.8f}")
        step += 1
    with torch.no_grad():
        sample = netG(fixed_noise)
    print(f"sample mean {sample.mean().item():.4f}")

torch.save({"G": netG.state_dict(), "D": netD.state_dict()}, sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
