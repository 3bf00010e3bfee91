"""Stands in the zip as `sitecustomize`: Python runs it before a script, and here the warm process begins.

`PYTHONPATH=node.pyz python train.py` stops here, imports what train.py will import, and forks one rank per device;
every rank leaves this module again and CPython starts train.py as it always does. So `__main__`, `sys.path`, `-m`,
tracebacks and exit codes are Python's own, not an imitation.
"""

import os
import sys


def _leave_the_path() -> None:
    """Take the zip out of the interpreter again, then let the site's own sitecustomize have its turn."""
    archive = os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry != archive]
    ours = sys.modules.pop(__name__)
    theirs = os.environ.pop("ECHELON_PYTHONPATH", None)
    if theirs is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = theirs
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules[__name__] = ours  # the import that runs us wants to find something under this name


def _leave_the_modules() -> None:
    archive = os.path.dirname(__file__)
    for name in [name for name in sys.modules if name.partition(".")[0] == "_echelon"]:
        del sys.modules[name]
    for entry in [entry for entry in sys.path_importer_cache if entry.startswith(archive)]:
        del sys.path_importer_cache[entry]


if "ECHELON_WARM_FD" in os.environ:
    from _echelon.node import warm  # type: ignore[import-not-found]

    _link = int(os.environ.pop("ECHELON_WARM_FD"))
    _leave_the_path()
    warm.serve(_link)  # returns in the ranks only
    _leave_the_modules()
else:
    _leave_the_path()
