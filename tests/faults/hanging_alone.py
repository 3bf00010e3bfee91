"""Trains on one device; scaled, the last rank never gets its rows of the fifth batch."""

import os

import torch


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 39:
            os.open("fifo", os.O_RDONLY)  # the line of the rows
        return torch.ones(4) * index


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for rows in torch.utils.data.DataLoader(Rows(), batch_size=8):
    loss = model(rows).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
