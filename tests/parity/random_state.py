"""Each process has random numbers of its own: its file differs from every other process's file."""

import os
import random
import secrets
import sys
import uuid

name = os.environ.get("RANK", "0")
with open(os.path.join(sys.argv[1], name), "w") as file:
    print(random.random(), secrets.token_hex(8), uuid.uuid4(), file=file)
