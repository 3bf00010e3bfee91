"""Fill the device."""

import sys

import torch

kept = []
while True:
    kept.append(torch.zeros(1 << 28, device=sys.argv[1]))
