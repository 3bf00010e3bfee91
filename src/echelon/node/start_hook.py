"""Stands in the zip as `sitecustomize`: Python runs it before a script, and here the warm process begins.

`PYTHONPATH=node.pyz python train.py` stops here, imports what train.py will import, and forks one rank per device;
every rank leaves this module again and CPython starts train.py as it always does. So `__main__`, `sys.path`, `-m`,
tracebacks and exit codes are Python's own, not an imitation.
"""

import os
import sys

_at_start = frozenset(sys.modules)


def _leave_the_path() -> None:
    """Take the zip out of the interpreter again."""
    archive = os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry != archive]
    del sys.modules[__name__]
    theirs = os.environ.pop("ECHELON_PYTHONPATH", None)
    if theirs is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = theirs


def _forget(name: str) -> None:
    """Forget a module and those inside it; a look at all names would copy the pages they are on, in each rank."""
    module = sys.modules.pop(name, None)
    for inner in list(getattr(module, "__dict__", ())):
        if name + "." + inner in sys.modules:
            _forget(name + "." + inner)


def _leave_the_modules() -> None:
    for name in ("_echelon.node", "_echelon.environment", "_echelon.topology") if _scale else ("_echelon",):
        _forget(name)
    archive = os.path.dirname(__file__)
    for entry in [entry for entry in sys.path_importer_cache if entry.startswith(archive)]:
        del sys.path_importer_cache[entry]


def _prepare_scaling() -> None:
    from _echelon.train import automatic  # type: ignore[import-not-found]

    automatic.prepare(_scale)


_link = os.environ.pop("ECHELON_WARM_FD", "")
_is_live = os.environ.pop("ECHELON_LIVE", "")
_scale = os.environ.get("ECHELON_SCALE", "")
if _scale:
    __import__("_echelon.train")  # found by its package from here on, also when the path is left
if _link:
    from _echelon.node import warm  # type: ignore[import-not-found]
elif "ECHELON_KEY_FD" in os.environ:  # inherited (see credentials.py), and not to be by what the script starts
    try:
        os.set_inheritable(int(os.environ["ECHELON_KEY_FD"].partition(":")[0]), False)
    except OSError:
        pass  # what a script starts has the variable, and not the descriptor
_leave_the_path()
try:
    # the site's own has its turn; where there is none, or it fails, site.py gets the error that it would have got
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
finally:
    if _is_live and not sys.stdout.write_through:  # type: ignore[union-attr]
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # rank 0 is read live
    if _link:
        try:
            warm.serve(int(_link), _at_start, _prepare_scaling if _scale else None)  # returns in the ranks only
        except BaseException:  # noqa: BLE001
            sys.excepthook(*sys.exc_info())
            os._exit(70)  # whatever failed here, the script must not run outside of its rank
        _leave_the_modules()
    if _scale:
        try:
            from _echelon.train import automatic

            automatic.begin(_scale, was_forked=bool(_link))
        except BaseException:  # noqa: BLE001
            sys.excepthook(*sys.exc_info())
            os._exit(70)  # Python itself would go on with the script, on all ranks alike
