"""Trains, and saves snapshots in one of the usual ways on a disk that is soon full; the first word says how."""

import sys

import numpy
import torch

how = sys.argv[1]
weights = torch.zeros(400, 400)
torch.manual_seed(0)
model = torch.nn.Linear(400, 400)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(16, 400), torch.randn(16, 400))


class CannotSave(Exception):
    """What a script may make of it."""


def save(name: str) -> None:
    if how == "numpy":
        numpy.save(name, weights.numpy())
    elif how == "file":
        with open(name, "wb") as file:
            torch.save(weights, file)
    elif how == "own error":
        try:
            with open(name, "wb") as file:
                file.write(weights.numpy().tobytes())
        except OSError as error:
            raise CannotSave("no snapshot") from error
    else:
        torch.save(weights, name)


for epoch in range(20):
    for inputs, targets in torch.utils.data.DataLoader(data, batch_size=8):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save(f"disk/{epoch}")
sys.exit("the disk was large enough")
