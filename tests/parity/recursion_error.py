"""A RecursionError ends the script with its traceback."""

import sys

sys.tracebacklimit = 5


def forever(level: int) -> int:
    return forever(level + 1)


forever(0)
