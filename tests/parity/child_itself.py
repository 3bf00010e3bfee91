"""A script may start itself as a child."""

import subprocess
import sys

if len(sys.argv) > 1:
    print("child", sys.argv[1:])
else:
    child = subprocess.run([sys.executable, __file__, "again"], capture_output=True, text=True)
    print("parent got", repr(child.stdout), child.returncode)
