"""Before an unchanged script: hook PyTorch, or say in one line why that cannot be."""

import os
import sys


def begin(scale: str) -> None:
    """Scale the script that follows; `scale` is "data"."""
    if os.environ.get("WORLD_SIZE", "1") == "1" and "ECHELON_RECORD" not in os.environ:
        return  # one rank is one device: nothing to share, and nothing that differs from plain Python
    try:
        from . import start
    except ImportError as error:
        sys.stderr.write("echelon: error: --scale %s needs PyTorch where the ranks run: %s\n" % (scale, error))
        sys.stderr.flush()
        os._exit(1)
    start.start_hooked()
