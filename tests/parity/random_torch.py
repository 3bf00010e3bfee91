"""Each process has torch random numbers of its own: its file differs from every other process's file."""

import os
import sys

import torch

name = os.environ.get("RANK", "0")
with open(os.path.join(sys.argv[1], name), "w") as file:
    print(torch.initial_seed(), torch.rand(2).tolist(), file=file)
