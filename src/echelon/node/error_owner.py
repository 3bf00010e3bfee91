"""The lines by which a rank says, below a traceback, whose error it is."""

import sys

ECHELON = "echelon: this is a mistake of echelon, not of the script"
"""The begin of the line; `launch.failure` knows it."""
OF_RANK_0 = "echelon: this is the error of rank 0, which writes for all ranks"
"""A line for the ranks that get the error; `launch.failure` knows it too."""


def own_line() -> str:
    """Return the line, with the versions that a report of the mistake needs."""
    ours = getattr(sys.modules.get(__name__.partition(".")[0]), "__version__", "")
    torch = getattr(sys.modules.get("torch"), "__version__", "")
    versions = [name for name in ("echelon %s" % ours, torch and "PyTorch %s" % torch) if name]
    return "%s (%s, Python %s)\n" % (ECHELON, ", ".join(versions), sys.version.partition(" ")[0])
