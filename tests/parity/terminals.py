"""None of the three streams claims to be a terminal when none is."""

import os
import sys

print(sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty())
print(os.isatty(0), os.isatty(1), os.isatty(2))
