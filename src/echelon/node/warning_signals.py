"""Let ranks survive the signals by which sites announce the end of a job, if the script has no handler.

The kernel ignores these signals for the rank, but Python still calls them unhandled: a framework that looks for a
handler before it installs its own (Lightning's `_has_already_handler`) finds none. The script's handler replaces this.
"""

import signal
from typing import Iterable, List

from . import processes

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
_SIG_IGN = 1  # asm-generic/signal-defs.h


def ignore() -> None:
    """Ignore the signals that have no handler, from now on, in this process and its children."""
    free = [number for number in WARNINGS if signal.getsignal(number) is signal.SIG_DFL]
    try:
        import ctypes  # the warm process has it already

        set_disposition = ctypes.CDLL(None).signal
    except (ImportError, OSError, AttributeError):  # a Python without ctypes
        for number in free:
            signal.signal(number, signal.SIG_IGN)
        return
    set_disposition.argtypes = (ctypes.c_int, ctypes.c_void_p)
    set_disposition.restype = ctypes.c_void_p
    for number in free:
        set_disposition(number, _SIG_IGN)


def ignoring(number: int, pids: Iterable[int]) -> List[int]:
    return [pid for pid in pids if processes.has_signal(pid, "SigIgn", number)]
