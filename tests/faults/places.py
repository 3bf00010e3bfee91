"""Waits the first time, and ends well the second time; a file tells whether a rank was there before."""

import os
import sys
import time
from pathlib import Path

mine = Path("waits-" + os.environ["RANK"])
if not mine.exists():
    mine.touch()
    time.sleep(120)
    sys.exit("nobody ended me")
print("again, rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
