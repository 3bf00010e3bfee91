"""Counts the signals that reach it and writes each down as it comes; ends well once SIGTERM has come."""

import os
import signal
import sys
import time
from pathlib import Path

path = Path(sys.argv[1]) / f"{os.environ['RANK']}.signals"
seen: list[str] = []


def note(number: int, _frame: object) -> None:
    seen.append(signal.Signals(number).name)
    path.write_text("\n".join(seen))


for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, note)
path.write_text("")
print("ready", flush=True)
while "SIGTERM" not in seen:
    time.sleep(0.01)
time.sleep(0.3)
