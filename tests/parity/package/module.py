"""`-m package.module` runs this file with relative imports and a spec."""

import os
import sys

from . import sibling

print(__name__, __package__, __spec__ and __spec__.name, __file__, sibling.__name__)
print(os.path.basename(sys.argv[0]), sys.argv[1:], repr(sys.path[0]))
print(type(__loader__).__name__, os.path.basename(__cached__ or ""), sys.orig_argv[1:])
