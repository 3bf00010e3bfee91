import random
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CONFIG = {
    "seed": 3407,
    "model": {"name": "Mlp", "kwargs": {"width": 32, "depth": 3}},
    "data": {"n": 400, "batch_size": 32, "shuffle": True, "drop_last": False},
    "optimizer": {"name": "NAdam", "kwargs": {"lr": 2e-3, "weight_decay": 1e-4}},
    "scheduler": {"name": "CosineAnnealingLR", "kwargs": {"T_max": 60}},
    "trainer": {"max_steps": 60},
}


class Mlp(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6 if i == 0 else width, width) for i in range(depth)])
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.gelu(layer(x))
        return self.head(x)


MODELS = {"Mlp": Mlp}


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def run(cfg: dict, out: str) -> None:
    seed_everything(cfg["seed"])
    n = cfg["data"].pop("n")
    x = torch.from_numpy(np.random.randn(n, 6).astype(np.float32))
    y = (x[:, 0] * x[:, 1] > 0).long() + 2 * (x[:, 2] > 0).long()
    loader = DataLoader(TensorDataset(x, y), **cfg["data"])
    model = MODELS[cfg["model"]["name"]](**cfg["model"]["kwargs"])
    optimizer = getattr(torch.optim, cfg["optimizer"]["name"])(model.parameters(), **cfg["optimizer"]["kwargs"])
    scheduler = getattr(torch.optim.lr_scheduler, cfg["scheduler"]["name"])(optimizer, **cfg["scheduler"]["kwargs"])
    step = 0
    while step < cfg["trainer"]["max_steps"]:
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            print(f"step {step} loss {float(loss):.8f} lr {scheduler.get_last_lr()[0]:.8f}")
            step += 1
            if step >= cfg["trainer"]["max_steps"]:
                break
    torch.save({"config": cfg, "model": model.state_dict()}, out)


if __name__ == "__main__":
    run(CONFIG, sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
