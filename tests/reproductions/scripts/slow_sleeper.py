"""Rank 1 sleeps 40 ms after each step, as with a log on a slow disk."""

import time

from slow_base import rank, train

train(after=lambda step: time.sleep(0.04 if rank() == 1 else 0))
