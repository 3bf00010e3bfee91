"""`os._exit` ends the process at once: no buffer is written, no atexit function runs."""

import atexit
import os
import sys

atexit.register(print, "never seen")
print("flushed", flush=True)
sys.stdout.write("lost in the buffer")
os._exit(6)
