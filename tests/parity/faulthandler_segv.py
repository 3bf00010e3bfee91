"""faulthandler shows where the script was when a signal killed it."""

import faulthandler
import os
import resource
import signal

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
faulthandler.enable(all_threads=False)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


crash()
