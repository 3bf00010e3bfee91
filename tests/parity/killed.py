"""A process that a signal kills is reported as killed by that signal; SIGPIPE is ignored."""

import os
import resource
import signal
import sys

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print("before", flush=True)
os.kill(os.getpid(), signal.Signals[sys.argv[1]])
print("after")
