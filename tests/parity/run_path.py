"""`runpy` works inside the script, and gives `__main__` back afterwards."""

import os
import runpy
import sys

here = os.path.dirname(os.path.abspath(__file__))
before = sys.modules["__main__"]
names = runpy.run_path(os.path.join(here, "name_guard.py"), run_name="__main__")
print(names["__name__"], sys.modules["__main__"] is before)
print(runpy.run_module("package.module", run_name="other")["__name__"])
