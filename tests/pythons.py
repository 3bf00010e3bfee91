"""The Python interpreters of this machine, each version once."""

import glob
import os
import shutil
import sys


def at_hand(*minors: int) -> list[str]:
    """Return the paths of those Python 3 versions that are here: this one, in PATH, or kept by pyenv."""
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    paths = []
    for minor in minors:
        if sys.version_info[1] == minor:
            paths.append(sys.executable)
            continue
        kept = glob.glob(f"{pyenv}/versions/3.{minor}.*/bin/python")
        named = shutil.which(f"python3.{minor}") or ""
        paths += kept[:1] or ([named] if named and not named.startswith(pyenv) else [])
    return paths
