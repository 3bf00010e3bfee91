"""128 micro-batches for each step."""

import torch

model = torch.nn.Sequential(*[torch.nn.TransformerEncoderLayer(1024, 16, batch_first=True) for _ in range(24)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
step = 0
while True:
    (model(torch.randn(1, 1024, 1024, device="cuda")).mean() / 128).backward()
    step += 1
    if step % 128 == 0:
        optimizer.step()
        optimizer.zero_grad()
