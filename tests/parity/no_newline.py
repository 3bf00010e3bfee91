"""Output that does not end in a newline arrives as it was written."""

import sys

sys.stdout.write("one line\nand a half")
sys.stderr.write("half a line")
