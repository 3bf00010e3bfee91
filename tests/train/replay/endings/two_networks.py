"""Two networks against each other: the second one steps every third batch, and adds up its gradients between."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
real = torch.randn(240, 4) * torch.tensor([1.0, 2.0, 0.5, 1.0]) + 1
make = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 4))
judge = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
of_make = torch.optim.Adam(make.parameters(), lr=2e-3, betas=(0.5, 0.999))
of_judge = torch.optim.RMSprop(judge.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(real), batch_size=12, shuffle=True)
bce = nn.functional.binary_cross_entropy_with_logits
number = 0
for epoch in range(4):
    for (a,) in loader:
        noise = torch.randn_like(a)
        of_judge.zero_grad()
        fake = make(noise)
        told, made = judge(a), judge(fake.detach())
        of_truth = bce(told, torch.ones_like(told)) + bce(made, torch.zeros_like(made))
        of_truth.backward()
        of_judge.step()
        made = judge(fake)
        of_fake = bce(made, torch.ones_like(made)) / 3
        of_fake.backward()
        number += 1
        if number % 3 == 0:
            of_make.step()
            of_make.zero_grad()
        print(f"step {number:4d} judge {of_truth.item():.9e} make {of_fake.item():.9e}", flush=True)
    print(f"epoch {epoch:2d} is over", flush=True)
