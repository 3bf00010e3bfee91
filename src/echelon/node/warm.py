"""The warm process: imports once, checks that a fork is safe, and forks every rank of this node.

It runs in the user's interpreter, at the start of the user's script (see start_hook.py).

End a rank without tearing down what was imported before the fork: the kernel frees that at once.

Python's own end runs as always: threads are joined, atexit handlers and the `__del__` of the script's objects run,
streams are flushed. Only the modules that the warm process imported are not cleared: clearing would copy every page
that the ranks share. Exit handlers of libraries that were loaded before the fork are skipped: libtorch takes 0.1 s to
unregister its operators. Both together are nine tenths of the CPU time of a rank that does nothing else.

Extensions that are built with nanobind (triton, which PyTorch 2.15 imports for each optimizer, and jaxlib) write lines
to stderr if their types are still there after Python's end. Here they are, on purpose, so nobody gets these lines.
"""

import atexit
import gc
import os
import select
import signal
import socket
import sys
from typing import Any, Callable, Dict, FrozenSet, List, Tuple

from ..environment import threads
from ..hardware import vendors
from . import link, preload, processes, pulse, secret, sweep, warning_signals

# Slurm signals every process of a step; only the ranks should act on it, and the agent passes it on to them
HELD_BACK = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP}


def serve(
    descriptor: int,
    at_start: FrozenSet[str],
    prepare_ranks: Callable[[], None],
    measuring: "Callable[[], pulse.Measuring]",
) -> None:
    """Import, then fork ranks whenever the agent asks; return in the ranks, never in the warm process.

    `at_start` names the modules that every Python has before it starts a script; `prepare_ranks` does work once that
    several ranks would otherwise repeat; `measuring` returns what measures a rank.
    """
    agent = socket.socket(fileno=descriptor)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    request = link.receive(agent)
    if request is None:
        os._exit(0)
    prepare()
    folder, own = request[0]["folder"], request[0]["own"]
    preload.forget_shadowed(folder, own, at_start)
    report = preload.prepare(request[0], prepare_ranks if request[0]["num_ranks"] > 1 else None)
    sweep.adopt_orphans()
    preload.forget_shadowed(folder, own, at_start)
    if request[0].get("is_template"):
        from . import pool_template

        agent = pool_template.lend(agent, report["why_not"], request[0]["output"], request[0]["began_ns"], _keep)
        sweep.adopt_orphans()
        preload.forget_shadowed(folder, own, at_start)
        report["seconds"] = 0.0
    link.send(agent, {"kind": "ready", "pid": os.getpid(), **report})
    if not _kept:
        _keep()
    on_child = signal.getsignal(signal.SIGCHLD)  # an import may have set it
    wakeup = _watch_children()
    while True:
        readable, _, _ = select.select([agent.fileno(), wakeup[0]], [], [])
        if wakeup[0] in readable:
            _report_exits(agent, wakeup[0])
        if agent.fileno() in readable:
            request = link.receive(agent)
            if request is None:
                os._exit(0)
            message, descriptors = request
            if _fork(agent, message, descriptors):
                _become_rank(agent, wakeup, mask, message, descriptors, measuring)
                signal.signal(signal.SIGCHLD, on_child)
                return


def _keep() -> None:
    keep_modules()
    gc.freeze()  # otherwise a collection in a rank would touch, and so copy, every shared page


def _watch_children() -> Tuple[int, int]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reading, writing


def _report_exits(agent: socket.socket, wakeup: int) -> None:
    try:
        os.read(wakeup, 4096)
    except BlockingIOError:
        pass
    for pid, status in processes.ended():
        link.send(agent, {"kind": "exit", "pid": pid, "status": status})


def _fork(agent: socket.socket, message: Dict[str, Any], descriptors: List[int]) -> bool:
    """Fork one rank; return True in the rank."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        pid = os.fork()
    except OSError as error:
        link.send(agent, {"kind": "unforked", "local_rank": message["local_rank"], "why": str(error)})
        pid = -1
    if pid == 0:
        return True
    for descriptor in descriptors:
        os.close(descriptor)
    if pid > 0:
        link.send(agent, {"kind": "forked", "local_rank": message["local_rank"], "pid": pid})
    return False


def _become_rank(
    agent: socket.socket,
    wakeup: Tuple[int, int],
    mask: Any,
    message: Dict[str, Any],
    descriptors: List[int],
    measuring: "Callable[[], pulse.Measuring]",
) -> None:
    os.setsid()
    if message["cpus"]:
        _bind(agent, message)
    agent.close()
    signal.set_wakeup_fd(-1)
    for end in wakeup:
        os.close(end)
    for standard, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    for name, value in message["environ"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    page = descriptors.pop() if message.get("has_pulse") else -1
    for descriptor in descriptors[3:]:
        os.environ.update(secret.variable(descriptor))
    if message.get("argument"):
        sys.argv.insert(1, message["argument"])
    renew()
    if page >= 0:
        pulse.arm(page, measuring)
    warning_signals.ignore()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _bind(agent: socket.socket, message: Dict[str, Any]) -> None:
    """Bind this rank to its cores, and report the resulting binding from inside."""
    threads.apply(message["cpus"])
    environ = {**os.environ, **message["environ"]}
    seen = {name: environ[name] for name in threads.SEEN if environ.get(name) is not None}
    cpus = sorted(os.sched_getaffinity(0))
    link.send(agent, {"kind": "held", "local_rank": message["local_rank"], "cpus": cpus, "environ": seen})


def renew() -> None:
    """Renew random numbers, the main thread's id and PyTorch's pool of threads."""
    _reseed()
    _renew_thread_id()
    _renew_thread_pool()


def _reseed() -> None:
    """Give this rank its own entropy, as every process has under plain python.

    The standard library's `random` does so by itself after a fork; numpy and torch do not.
    """
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def _renew_thread_id() -> None:
    """Update the main thread's id: threading keeps the id of the process that imported it."""
    threading = sys.modules.get("threading")
    if threading is not None:
        threading.main_thread()._set_native_id()


def _renew_thread_pool() -> None:
    """Let PyTorch replace its pool of threads now, in one thread.

    A fork has no threads, so PyTorch makes a new pool at the first use after a fork, without a lock
    (caffe2/utils/threadpool/pthreadpool-cpp.cc). With a build for devices the engine of autograd starts threads that
    each use the pool at once: in 3 of 1,000 runs one found none, and ended the rank ("Invalid thread pool!", 2.15).
    """
    torch = sys.modules.get("torch")
    version = getattr(torch, "version", None)
    if torch is not None and any(getattr(version, vendor.torch_word, None) for vendor in vendors.ALL):
        torch.set_num_threads(torch.get_num_threads())


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
