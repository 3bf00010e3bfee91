"""A folder or a zip file with a `__main__.py` runs like a script."""

import os
import sys

import beside

print(__name__, repr(__package__), __spec__ and __spec__.name, os.path.basename(__file__))
print(sys.argv[0] == sys.path[0], sys.argv[1:], beside.ANSWER, type(__loader__).__name__)
