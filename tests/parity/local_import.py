"""A module beside the script is imported from there, also after a change of directory."""

import importlib
import os

os.chdir("/")
module = importlib.import_module("warning_module")
print(module.__file__, module.__name__)
