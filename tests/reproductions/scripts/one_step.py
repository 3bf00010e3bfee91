"""A script with a single step."""

import torch

model = torch.nn.Linear(1000, 1000).cuda()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(64, 1000, device="cuda")).sum().backward()
optimizer.step()
