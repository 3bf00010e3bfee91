"""A folder that the script puts first on `sys.path` is searched first by the imports that follow."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import textwrap

print(textwrap.NAME)
