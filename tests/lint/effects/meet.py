"""Listen where the ranks of a job would meet, until the second job has tried."""

import os
import socket
import sys
import time

folder = os.environ["SEEN"]
open(f"{folder}/tried-{os.environ['SLURM_JOB_ID']}", "w").close()
with socket.socket() as listener:
    try:
        listener.bind(("127.0.0.1", int(os.environ["MASTER_PORT"])))
        listener.listen()
    except OSError as error:
        sys.exit(f"{error}")
    deadline = time.monotonic() + 50
    while len([name for name in os.listdir(folder) if name.startswith("tried-")]) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
