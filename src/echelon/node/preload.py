"""Import the modules that the script will import, and check whether a fork is still safe afterwards."""

import gc
import importlib
import importlib.machinery
import os
import sys
import time
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Sequence, Set

from ..environment.variables import RANK_NAMES
from . import processes

NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"  # is_available() then asks NVML and does not initialise the driver
HARMLESS_THREADS = frozenset({"jemalloc_bg_thd"})  # of pyarrow's allocator, which locks itself around every fork


def prepare(request: Dict[str, Any], prepare_ranks: Optional[Callable[[], None]] = None) -> Dict[str, Any]:
    """Import the modules of the request, and run the preparations that all ranks need.

    Return the duration, and the reasons against a fork, if there are any.
    """
    start = time.monotonic()
    num_modules = len(sys.modules)
    adds_nvml_check = NVML_CHECK not in os.environ
    os.environ.setdefault(NVML_CHECK, "1")
    # hidden, so that the watch notices a module that asks for one by name, but not one that copies them all
    hidden = {name: os.environ.pop(name) for name in RANK_NAMES if name in os.environ}
    gc.disable()  # an import only adds objects: collections take a tenth of the time of `import torch`
    watch = _EnvironmentWatch()
    try:
        failed = import_all(request["preload"], request["folder"])
        num_modules = len(sys.modules) - num_modules
        if prepare_ranks:
            _try(prepare_ranks)
    finally:
        watch.end()
        gc.enable()
        if adds_nvml_check:
            del os.environ[NVML_CHECK]
        os.environ.update(hidden)
    return {
        "why_not": "; ".join(reasons_against_fork(watch.readers)),
        "failed": failed,
        "num_modules": num_modules,
        "seconds": time.monotonic() - start,
    }


def forget_shadowed(folder: str, own: Sequence[str], at_start: FrozenSet[str]) -> None:
    """Forget imported modules if the script, or its folder, has a module of the same name."""
    shadowed = set(own) - at_start
    for name in {name.partition(".")[0] for name in sys.modules} - at_start:
        spec = importlib.machinery.PathFinder.find_spec(name, [folder])
        if spec is None or spec.loader is None:  # a folder without __init__ hides nothing
            continue
        if getattr(sys.modules.get(name), "__file__", None) != spec.origin:
            shadowed.add(name)
    sys.path_importer_cache.pop(folder, None)
    for name in [name for name in sys.modules if name.partition(".")[0] in shadowed]:
        del sys.modules[name]


def import_all(names: Sequence[str], folder: str) -> List[str]:
    """Import each name ("a.b", or "a.b:c" for `from a.b import c`); return those that cannot be imported.

    The script's folder is searched first, as in the script, so that its modules shadow others here too.
    """
    failed = []
    sys.path.insert(0, folder)
    try:
        for name in names:
            module, _, attribute = name.partition(":")
            try:
                imported = importlib.import_module(module)
                if attribute and not hasattr(imported, attribute):
                    importlib.import_module(module + "." + attribute)
            except BaseException:  # noqa: BLE001  # whatever it is, the rank will meet it itself and show it
                failed.append(name)
    finally:
        sys.path.remove(folder)
        sys.path_importer_cache.pop(folder, None)
    return failed


def _try(act: Callable[[], None]) -> None:
    try:
        act()
    except BaseException:  # noqa: BLE001  # whatever it is, the ranks will meet it themselves and show it
        pass


class _EnvironmentWatch:
    """Notice modules that read their rank during import: before the fork they would read a wrong rank."""

    def __init__(self) -> None:
        self.readers: List[str] = []
        self._kind = type(os.environ)
        self._original = self._kind.__getitem__
        readers, original = self.readers, self._original

        def watched(environ: Any, key: str) -> str:
            if key in RANK_NAMES:
                readers.append("%s reads %s when it is imported" % (_reader(), key))
            return original(environ, key)

        self._kind.__getitem__ = watched  # type: ignore[method-assign]

    def end(self) -> None:
        self._kind.__getitem__ = self._original  # type: ignore[method-assign]


def _reader() -> str:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("os", "_collections_abc", "collections.abc"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "a module"))


def reasons_against_fork(readers: Sequence[str]) -> List[str]:
    """Return the reasons against forking this process; an empty list allows it."""
    reasons = list(dict.fromkeys(readers))
    if _threads():
        _fork_once()  # OpenBLAS and others end their threads in a fork handler and start them again when needed
        names = sorted(_threads())
        if names:
            reasons.append("an import started threads that stay: %s" % ", ".join(names))
    reasons += ["an import opened %s" % path for path in processes.open_files()]
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        reasons.append("an import initialised the device driver")
    return reasons


def _threads() -> Set[str]:
    """Return the names of threads, except the main thread, that a fork would drop."""
    names = set()
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            try:
                with open("/proc/self/task/%s/comm" % task) as file:
                    names.add(file.read().strip())
            except OSError:
                continue  # the thread has just ended
    if not processes.has_cuda_begun():
        names = {name for name in names if not name.startswith(processes.NVML_THREADS)}
    return names - HARMLESS_THREADS


def _fork_once() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
