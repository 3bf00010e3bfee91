"""250,000 objects and a collection after each step, on all ranks."""

import gc

from slow_base import train


def collect(step):
    junk = [[number] for number in range(250_000)]
    gc.collect()
    del junk


train(after=collect)
