"""Arguments reach the script byte for byte."""

import os
import sys

print(len(sys.argv))
for argument in sys.argv[1:]:
    print(ascii(argument), os.fsencode(argument))
