"""`sys.argv[0]` is the script as it was named on the command line, `__file__` its absolute path."""

import sys

print(sys.argv[0])
print(__file__)
