"""Note when each rank runs: `running.py FOLDER`."""

import os
import sys
import time

now = time.monotonic()
rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID"))
with open(os.path.join(sys.argv[1], f"rank-{rank}"), "w") as mark:
    mark.write(repr(now))
