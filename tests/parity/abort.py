"""`os.abort` ends the process by SIGABRT."""

import os
import resource

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print("before", flush=True)
os.abort()
