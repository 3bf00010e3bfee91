"""Waits as long as all nodes are there, and ends well once some are gone."""

import os
import sys
import time
from pathlib import Path

all_ranks = int(sys.argv[1])
print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], "of", os.environ["WORLD_SIZE"], flush=True)
if int(os.environ["WORLD_SIZE"]) == all_ranks:
    Path("waits-" + os.environ["RANK"]).touch()
    time.sleep(120)
    sys.exit("nobody ended me")
