"""Waits in each attempt but the last, and ends well in the last one."""

import os
import sys
import time
from pathlib import Path

attempt, last = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(sys.argv[1])
print("attempt", attempt, "of", os.environ["WORLD_SIZE"], flush=True)
if attempt < last:
    Path(f"waits-{attempt}-{os.environ['RANK']}").touch()
    time.sleep(120)
    sys.exit("nobody ended me")
