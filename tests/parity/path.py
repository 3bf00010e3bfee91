"""`sys.path` is that of plain Python, the script's own folder first."""

import sys

for entry in sys.path:
    print(entry)
