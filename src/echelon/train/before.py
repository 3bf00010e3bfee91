"""Before an unchanged script: hook PyTorch, or say in one line why that cannot be."""

import os
import sys


def begin(scale: str) -> None:
    """Scale the script that follows; `scale` is "data"."""
    try:
        from . import start
    except ImportError as error:
        sys.stderr.write("echelon: error: --scale %s needs PyTorch where the ranks run: %s\n" % (scale, error))
        sys.stderr.flush()
        os._exit(1)
    start.start_hooked()
