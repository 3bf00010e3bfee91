"""Import torch, note that this rank sleeps, and sleep until told to end: `sleeping.py FOLDER`."""

import os
import sys
import time

import torch  # noqa: F401  # what a training script costs must not be counted for its launcher

folder = sys.argv[1]
with open(os.path.join(folder, f"rank-{os.environ['RANK']}"), "w") as mark:
    mark.write(repr(time.monotonic()))
while not os.path.exists(os.path.join(folder, "end")):
    time.sleep(0.05)
