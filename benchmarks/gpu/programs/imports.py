"""Import a package at the top, as scripts do, and then compute on the device in each rank."""

import sys

import PACKAGE  # noqa: F401  (the program that starts this puts a name here)
import torch

x = torch.ones(512, 512, device=sys.argv[1])
print("computed", float((x @ x).sum()) == 512.0**3)
