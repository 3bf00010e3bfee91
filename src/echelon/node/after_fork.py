"""What a forked process renews, so that it is as a process of its own."""

import sys


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
    if torch is not None and any(getattr(version, name, None) for name in ("cuda", "hip", "xpu")):
        torch.set_num_threads(torch.get_num_threads())
