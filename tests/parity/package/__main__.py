"""`-m package` runs this file as `__main__` with the package's spec."""

import os
import sys

from . import module

print(__name__, __package__, __spec__.name, __spec__.origin, __file__)
print(os.path.basename(sys.argv[0]), sys.argv[1:], repr(sys.path[0]))
print(module.__name__)
