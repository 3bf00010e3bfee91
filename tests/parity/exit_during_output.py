"""Buffered output is written before an unhandled exception ends the script."""

import sys

sys.stdout.write("buffered ")
raise RuntimeError("after the output")
