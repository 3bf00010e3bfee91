"""Let a rank end without taking apart what was imported before the fork: the kernel does that at once.

Python's own end runs as always: threads are joined, atexit handlers and the `__del__` of the script's objects run,
streams are flushed. Only modules that the warm process imported are not emptied, which would copy every page that
the ranks share, and exit handlers of libraries loaded before the fork are skipped: libtorch takes 0.1 s to
unregister its operators. Together that is nine tenths of the CPU time of a rank that does nothing else.
"""

import atexit
import os
import sys
from typing import Any, Dict, List

# with these, profilers are in the process from its start, and write what they found when it exits
TOOLS = ("LD_PRELOAD", "LD_AUDIT", "CUDA_INJECTION64_PATH", "HSA_TOOLS_LIB", "ROCP_TOOL_LIB")

_kept: List[Dict[str, Any]] = []


class _StandIn:
    """Answers for a module in sys.modules, with the module's own names, and is not emptied at the end."""


def prepare() -> None:
    """Register to come last: call it before anything is imported that registers too."""
    atexit.register(_stand_aside)


def keep_modules() -> None:
    """Keep what has been imported until now, in all ranks that will be forked from here."""
    ctypes = sys.modules.get("ctypes")
    if ctypes is None or any(name in os.environ for name in TOOLS):
        return  # what is imported without ctypes is small: torch and numpy both import it
    kept = {name: module for name, module in sys.modules.items() if name not in ("__main__", "sys", "builtins")}
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # never freed, and so none of the modules either
    _kept.append(kept)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc; what is registered here runs before all that was registered earlier
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)


def _stand_aside() -> None:
    for name, module in (_kept[0] if _kept else {}).items():
        if sys.modules.get(name) is module and type(getattr(module, "__dict__", None)) is dict:
            stand_in = _StandIn()
            stand_in.__dict__ = module.__dict__
            sys.modules[name] = stand_in  # type: ignore[assignment]
