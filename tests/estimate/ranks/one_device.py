"""Train on one device, as the script that is traced."""

import torch
from tests.estimate.ranks.transformer import Transformer, batch, loss_of

model = Transformer()
optimizer = torch.optim.AdamW(model.parameters())
inputs, targets = batch()
for _ in range(3):
    optimizer.zero_grad()
    loss_of(model(inputs), targets).backward()
    optimizer.step()
