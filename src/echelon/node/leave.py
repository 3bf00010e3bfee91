"""End a rank without tearing down what was imported before the fork: the kernel frees that at once.

Python's own end runs as always: threads are joined, atexit handlers and the `__del__` of the script's objects run,
streams are flushed. Only the modules that the warm process imported are not cleared: clearing would copy every page
that the ranks share. Exit handlers of libraries that were loaded before the fork are skipped: libtorch takes 0.1 s to
unregister its operators. Both together are nine tenths of the CPU time of a rank that does nothing else.

Extensions that are built with nanobind (triton, which PyTorch 2.15 imports for each optimizer, and jaxlib) write lines
to stderr if their types are still there after Python's end. Here they are, on purpose, so nobody gets these lines.
"""

import atexit
import os
import sys
from typing import Any, Dict, List

# these load a profiler into the process at its start, which writes its results at exit
TOOLS = ("LD_PRELOAD", "LD_AUDIT", "CUDA_INJECTION64_PATH", "HSA_TOOLS_LIB", "ROCP_TOOL_LIB")

_kept: List[Dict[str, Any]] = []


class _StandIn:
    """Replace a module in sys.modules: it has the module's names, and Python does not clear it at the end."""


def prepare() -> None:
    """Register a handler that runs last: call this before importing modules that register handlers."""
    atexit.register(_stand_aside)


def keep_modules() -> None:
    """Keep all modules imported so far, in all ranks that are forked from here."""
    ctypes = sys.modules.get("ctypes")
    if ctypes is None or any(name in os.environ for name in TOOLS):
        return  # imports without ctypes are small: torch and numpy both import it
    kept = {name: module for name, module in sys.modules.items() if name not in ("__main__", "sys", "builtins")}
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # never released, so the modules are never freed
    _kept.append(kept)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc; handlers registered here run before all earlier ones
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)


def _stand_aside() -> None:
    if _kept and any(kind.__module__ == "nanobind" for kind in type.__subclasses__(type)):
        _mute_native_code()
    for name, module in (_kept[0] if _kept else {}).items():
        if sys.modules.get(name) is module and type(getattr(module, "__dict__", None)) is dict:
            stand_in = _StandIn()
            stand_in.__dict__ = module.__dict__
            sys.modules[name] = stand_in  # type: ignore[assignment]


def _mute_native_code() -> None:
    """Let what C code writes to stderr from now on go nowhere; Python itself and other processes still write there."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    if hasattr(libc, "on_exit"):  # glibc, where the stream is a variable
        libc.fflush(None)
        ctypes.c_void_p.in_dll(libc, "stderr").value = libc.fopen(os.devnull.encode(), b"w")
