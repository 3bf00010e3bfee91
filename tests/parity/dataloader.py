"""A DataLoader's workers start with every start method and give the same batches."""

import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index * index)


if __name__ == "__main__":
    loader = DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context=sys.argv[1])
    for batch in loader:
        print(batch.tolist())
