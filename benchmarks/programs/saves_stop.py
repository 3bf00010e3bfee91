"""A state of 1 GB, saved in turns by echelon's saver and by torch.save(): how long the training stands still."""

import os
import sys
import tempfile
import time

import torch

from echelon.checkpoint.saver import Saver

ROUNDS, GIGABYTE = int(sys.argv[1]), 1 << 30
with tempfile.TemporaryDirectory(prefix="saves-", dir=os.curdir) as folder:
    state = {f"weight-{number}": torch.randn(GIGABYTE // 64 // 4, device=sys.argv[2]) for number in range(64)}
    saver = Saver(os.path.join(folder, "checkpoints"), 0, 1, keep=1)
    for step in range(ROUNDS + 1):  # the first one makes the plan and the memory of the copies
        began = time.monotonic()
        saver.save(step, state, {}, {})
        stopped = time.monotonic() - began
        saver.wait()
        began = time.monotonic()
        torch.save(state, os.path.join(folder, "state.pt"))
        if step:
            print(f"echelon {stopped:.4f} torch {time.monotonic() - began:.4f}", flush=True)
