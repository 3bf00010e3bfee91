"""Listen where the ranks of a job would meet, until the second job has tried."""

import os
import socket
import sys
import time
from pathlib import Path

folder = Path(os.environ["SEEN"])
failure = ""
with socket.socket() as listener:
    try:
        listener.bind(("127.0.0.1", int(os.environ["MASTER_PORT"])))
        listener.listen()
    except OSError as error:
        failure = str(error)
    (folder / f"tried-{os.environ['SLURM_JOB_ID']}").touch()  # when it has: the first one listens until then
    deadline = time.monotonic() + 50
    while not failure and len([*folder.glob("tried-*")]) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
sys.exit(failure or 0)
