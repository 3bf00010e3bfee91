"""A script may fork: the child's exit code comes back, and only the script's own frames run on."""

import os
import sys

print("before", flush=True)
child = os.fork()
if child == 0:
    print("child", flush=True)
    sys.exit(7)
reaped, status = os.waitpid(child, 0)
print("parent", reaped == child, os.waitstatus_to_exitcode(status))
