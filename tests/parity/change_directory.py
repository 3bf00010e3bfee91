"""After a change of directory the script's own lines still stand in its traceback."""

import os

os.chdir("/")
print(__file__, os.getcwd())
raise ValueError("far from home")
