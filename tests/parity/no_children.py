"""The script starts without child processes that it did not make."""

import os

try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError as error:
    print(error)
