"""No sitecustomize is there that the site does not have."""

import importlib.util
import sys

print("sitecustomize" in sys.modules, importlib.util.find_spec("sitecustomize"))
