"""A child that inherits everything sees no more open files than the three streams."""

import subprocess
import sys

code = "import os; print(sorted(int(name) for name in os.listdir('/proc/self/fd'))[:-1])"
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, close_fds=False).stdout)
