"""Whether the process leads its group and its session."""

import os

print(os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid())
