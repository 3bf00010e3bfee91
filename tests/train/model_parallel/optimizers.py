"""A few steps with each of the optimizers that are named, from the same weights; `still` is for the model."""

import sys

import torch
from split_model import GPT, LENGTH

RATES = {"SGD": 0.3, "ASGD": 0.3, "RAdam": 0.3, "Adadelta": 5.0, "none": 0.0}


class Counted(torch.optim.Adam):
    """Keeps what is no state of a weight."""

    def step(self, closure=None):
        self.state["steps"] = self.state.get("steps", 0) + 1
        return super().step(closure)


for name in sys.argv[2:]:
    torch.manual_seed(1)
    model = GPT()
    optimizer = getattr(torch.optim, name, Counted)(model.parameters(), lr=RATES.get(name, 5e-3))
    for _step in range(4):
        x = torch.randint(24, (8, LENGTH))
        _, loss = model(x, x.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.6f}")
