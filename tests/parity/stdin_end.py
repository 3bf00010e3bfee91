"""Standard input is at its end, and reading it returns at once."""

import sys

print(repr(sys.stdin.read()), sys.stdin.fileno(), sys.stdin.closed)
print(list(sys.stdin))
