"""An optimizer for each weight, called by the backward pass (PyTorch's tutorial "optimizer step in backward")."""

import torch

model = torch.nn.Sequential(*[torch.nn.Linear(1000, 1000) for _ in range(8)]).cuda()
optimizers = {weight: torch.optim.AdamW([weight]) for weight in model.parameters()}


def update(weight):
    optimizers[weight].step()
    optimizers[weight].zero_grad()


for weight in model.parameters():
    weight.register_post_accumulate_grad_hook(update)
for _ in range(10):
    model(torch.randn(64, 1000, device="cuda")).sum().backward()
