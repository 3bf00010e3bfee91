"""Works until it is ended, with a child of its own in another session and a grandchild that nobody waits for."""

import os
import subprocess
import sys
import time

subprocess.Popen(["sleep", "600"], start_new_session=True)
if os.fork() == 0:
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    os._exit(0)
os.wait()
print("at work", flush=True)
deadline = time.monotonic() + 120
while time.monotonic() < deadline:
    time.sleep(0.01)
sys.exit("nobody ended me")
