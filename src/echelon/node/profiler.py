"""Become a profiler that starts this rank's program again: nsys, rocprof, py-spy.

The start hook calls this in a rank that was started as a process of its own, before it takes anything from the
environment. The profiler's program then is this process, and starts the same Python with the same arguments.
"""

import json
import os
import sys
from typing import Dict, List, NoReturn

VARIABLE = "ECHELON_PROFILER"
"""ECHELON_PROFILER='{"ranks": [[0, 0]], "command": ["nsys", "profile", "-o", "{folder}/rank-{rank}"]}'"""
_OURS = ("PYTHONPATH", "ECHELON_PYTHONPATH")


def become(environ: Dict[str, str]) -> None:
    """Start the profiler in place of this process if the order asks it of this rank; else return."""
    order = json.loads(environ.pop(VARIABLE))
    rank = int(environ.get("RANK", "-1"))
    if any(low <= rank <= high for low, high in order["ranks"]):
        _start(order["command"], environ, rank)


def _start(command: List[str], environ: Dict[str, str], rank: int) -> NoReturn:
    folder = os.path.join(environ.get("ECHELON_RUN_DIR", os.curdir), "profile")
    words = [word.replace("{folder}", folder).replace("{rank}", str(rank)) for word in command]
    with open("/proc/self/cmdline", "rb") as file:
        own = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    # a profiler may be a Python program itself: the hook is for the rank's Python alone
    theirs = dict(environ)
    hook = ["%s=%s" % (name, theirs.pop(name)) for name in _OURS if name in theirs]
    if "ECHELON_PYTHONPATH" in environ:
        theirs["PYTHONPATH"] = environ["ECHELON_PYTHONPATH"]
    scale = theirs.pop("ECHELON_SCALE", "")
    hook += ["ECHELON_SCALE=" + scale] if scale else []
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.execvpe(words[0], [*words, "env", *hook, *own], theirs)
    except OSError as error:
        sys.stderr.write("echelon: error: %s on this node: %s\n" % (words[0], error.strerror))
        sys.stderr.flush()
        os._exit(127)
