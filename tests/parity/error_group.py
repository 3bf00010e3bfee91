"""An exception group prints its tree."""

import builtins
import sys

if not hasattr(builtins, "ExceptionGroup"):
    sys.exit("no exception groups before Python 3.11")
raise builtins.ExceptionGroup("two ranks failed", [ValueError("rank 1"), OSError(28, "no space")])
