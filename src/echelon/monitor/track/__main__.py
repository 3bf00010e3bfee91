"""The process that writes to trackers beside a run: RUN TRACKER…; it ends with the run, or with who reads its words."""

import os
import select
import sys
import time
from contextlib import suppress

from echelon.environment import regular_files
from echelon.errors import EchelonError
from echelon.monitor.track.follow import Follower, alone
from echelon.spec import Tracker

LOOK_SECONDS, END_LOOK_SECONDS = 2.0, 0.2
"""The time between two looks for points, and between two looks whether the run is over: a file is there then."""


def main(arguments: list[str]) -> int:
    path, *words = arguments
    trackers = [Tracker(name=name, where=where) for name, _, where in (word.partition(":") for word in words)]
    os.nice(5)  # the ranks come first
    reader, report, due = select.poll(), os.path.join(path, "report.json"), 0.0
    reader.register(os.dup(1), 0)  # tells only that the supervisor is gone
    try:
        with alone(path) as say:
            follower = Follower(path, trackers, say)
            follower.import_libraries()
            while not (is_left := bool(reader.poll(END_LOOK_SECONDS * 1000))) and not os.path.exists(report):
                if time.monotonic() >= due:
                    follower.look()
                    due = time.monotonic() + LOOK_SECONDS
            follower.end(None if is_left else regular_files.read_object(report).get("exit_code"))
    except (EchelonError, OSError) as error:
        with suppress(OSError):  # nobody reads it any more
            os.write(1, f"note: --track has stopped: {error}\n".encode("utf-8", "replace"))
    return 0


if __name__ == "__main__":
    if sys.path[0] == os.getcwd():
        del sys.path[0]  # a user's tensorboard.py is not the library
    sys.exit(main(sys.argv[1:]))
