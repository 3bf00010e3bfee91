"""An exception in a forked child ends only the child, with exit code 1."""

import os

child = os.fork()
if child == 0:
    raise ValueError("in the child")
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
