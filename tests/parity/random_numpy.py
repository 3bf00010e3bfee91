"""Each process has numpy random numbers of its own: its file differs from every other process's file."""

import os
import sys

import numpy

name = os.environ.get("RANK", "0")
with open(os.path.join(sys.argv[1], name), "w") as file:
    print(numpy.random.random(), numpy.random.default_rng().random(), file=file)
