"""Each stream keeps its own order when the script writes to both in turn."""

import sys

for number in range(200):
    print("out", number)
    print("err", number, file=sys.stderr)
