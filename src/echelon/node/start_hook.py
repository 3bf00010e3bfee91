"""The zip's `sitecustomize`: Python runs it before a script, and the warm process begins here.

`PYTHONPATH=node.pyz python train.py` stops here, imports what train.py will import, and forks one rank per device;
every rank leaves this module again and CPython starts train.py as it always does. So `__main__`, `sys.path`, `-m`,
tracebacks and exit codes are Python's own, not an imitation.
"""

import os
import sys

OLDEST = (3, 10)
"""The Python that `train`, `checkpoint` and what they import need; this room runs with an older one too."""
_at_start = frozenset(sys.modules)
TYPE_CHECKING = False  # typing itself is a module that a script may have a namesake of
if TYPE_CHECKING:
    from typing import Any


def _leave_the_path() -> None:
    """Remove the zip from sys.path and from PYTHONPATH."""
    archive = os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry != archive]
    del sys.modules[__name__]
    theirs = os.environ.pop("ECHELON_PYTHONPATH", None)
    if theirs is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = theirs


def _forget(name: str) -> None:
    """Forget a module and its submodules; looping over all of sys.modules would copy shared pages in each rank."""
    module = sys.modules.pop(name, None)
    for inner in list(getattr(module, "__dict__", ())):
        if name + "." + inner in sys.modules:
            _forget(name + "." + inner)


def _leave_the_modules() -> None:
    for name in ("_echelon.node", "_echelon.environment", "_echelon.topology"):
        _forget(name)
    archive = os.path.dirname(__file__)
    for entry in [entry for entry in sys.path_importer_cache if entry.startswith(archive)]:
        del sys.path_importer_cache[entry]


def _leave_own_names() -> None:
    """Forget modules that have the name of a file beside the script: the script finds its own, as with Python."""
    words = [word for word in getattr(sys, "orig_argv", [])[1:] if word == "-m" or not word.startswith("-")]
    folder = os.path.dirname(words[0]) if words and words[0] != "-m" else ""
    for name in set(sys.modules) - _at_start:
        path = os.path.join(folder, name)
        if "." not in name and (os.path.isfile(path + ".py") or os.path.isdir(path)):
            del sys.modules[name]


def _measuring() -> "Any":
    """Return the function that measures a rank; its module imports PyTorch. A Python before 3.10 measures nothing."""
    if sys.version_info < OLDEST:
        return lambda *_: None
    from _echelon.train.measuring import install  # type: ignore[import-not-found]

    return install.install


def _prepare_ranks() -> None:
    if "torch" in sys.modules:
        _measuring()
    if _scale:
        from _echelon.train import automatic  # type: ignore[import-not-found]

        automatic.prepare(_scale)


def _check_python() -> None:
    """End this rank if it shall do what the parts of echelon for training do, and its Python is older than they."""
    wanted = "echelon prove and --scale" if _scale else "echelon profile" if "ECHELON_PROFILE" in os.environ else ""
    if wanted and sys.version_info < OLDEST:
        oldest, version = (".".join(map(str, numbers)) for numbers in (OLDEST, sys.version_info[:2]))
        sys.stderr.write(
            "echelon: error: %s need Python %s or newer in the ranks; %s is Python %s\n"
            "  hint: echelon run --python PYTHON-WITH-TORCH …, or a container with a newer Python; "
            "--scale off starts the script as it is\n" % (wanted, oldest, sys.executable, version)
        )
        sys.stderr.flush()
        os._exit(2)


def _end() -> None:
    """End this process after an error of echelon."""
    from _echelon.node import frames  # type: ignore[import-not-found]

    sys.excepthook(*sys.exc_info())
    sys.stderr.write(frames.own_line())
    os._exit(70)


if "ECHELON_PROFILER" in os.environ and "ECHELON_WARM_FD" not in os.environ:
    from _echelon.node import profiler

    profiler.become(os.environ)  # returns only in the ranks that are not profiled
_link = os.environ.pop("ECHELON_WARM_FD", "")
_is_live = os.environ.pop("ECHELON_LIVE", "")
_scale = os.environ.get("ECHELON_SCALE", "")
_check_python()
__import__("_echelon.train")  # later imports find it by its package, also without the path
if _link:
    from _echelon.node import warm
elif "ECHELON_KEY_FD" in os.environ:  # inherited (see secret.py); the script's own children must not inherit it
    try:
        os.set_inheritable(int(os.environ["ECHELON_KEY_FD"].partition(":")[0]), False)
    except OSError:
        pass  # a child of the script has the variable, but not the descriptor
if not _link:
    from _echelon.node import pulse, warning_signals

    pulse.take(os.environ, _measuring)
    warning_signals.ignore()
_leave_the_path()
if not _link:
    _leave_the_modules()
    _leave_own_names()
_error_of_site = None
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  # the site's own
except BaseException as error:  # noqa: BLE001
    _error_of_site = error
if _is_live and not sys.stdout.write_through:  # type: ignore[union-attr]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # rank 0 is read live
if _link:
    try:
        warm.serve(int(_link), _at_start, _prepare_ranks, _measuring)  # returns only in the ranks
    except BaseException:  # noqa: BLE001
        _end()  # after any failure, the script must not run outside of its rank
    _leave_the_modules()
if "ECHELON_FETCH" in os.environ:
    from _echelon.train import fetched  # before files are shared: rank 0 writes for the notebook alone

    fetched.begin(os.environ)
if "ECHELON_STAGED" in os.environ and sys.version_info >= OLDEST:
    from _echelon.train import staged_files

    staged_files.begin(os.environ, os.path.dirname(__file__))
if _scale:
    try:
        from _echelon.train import automatic

        automatic.begin(_scale, was_forked=bool(_link))
    except BaseException:  # noqa: BLE001
        _end()  # Python would continue with the script, unscaled on every rank
if "ECHELON_PROFILE" in os.environ:
    from _echelon.train import profiling

    profiling.begin(os.environ)
if _error_of_site is not None:
    if sys.version_info < OLDEST:
        sys.modules[__name__] = type(sys)(__name__)  # its zipimport removes the module after an error, and must find it
    raise _error_of_site  # site.py says of a missing or failing sitecustomize what it always says
