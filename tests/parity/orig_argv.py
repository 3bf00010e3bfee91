"""`sys.orig_argv` is the command line that plain Python would have had."""

import sys

print(sys.orig_argv)
