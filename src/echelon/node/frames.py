"""Read the stacks that faulthandler writes, and tell a script's own lines from those of Python, PyTorch and echelon."""

import linecache
import os
import re
import sys
from typing import List, NamedTuple, Optional, Tuple

# Thread 0x00007f2a5c7fa740 [python] (most recent call first):   from Python 3.14 on with the name
# Stack (most recent call first):   of a crash
_THREAD = re.compile(r"^(?:(?:Current thread|Thread) 0x([0-9a-f]+)(?: \[.*\])?|Stack) \(most recent call first\):")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')  # '  File "/home/me/train.py", line 41 in step'
_LIBRARY = re.compile(r"[/.]pyz/|/(?:site|dist)-packages/|/lib(?:64)?/python3|^<frozen|/torch/|^<string>")
_OURS = re.compile(r"node\.pyz/|/_?echelon/(?:train|node|checkpoint|environment|pytorch|cli)/")
_MEASURING = re.compile(r"echelon/train/measuring/")
"""Functions around those of PyTorch that only take the time: nothing waits in them."""


class Frame(NamedTuple):
    """A call on a stack."""

    file: str
    line: int
    function: str


class Thread(NamedTuple):
    """A thread and its stack, the most recent call first."""

    ident: int
    frames: List[Frame]


def parse(text: str) -> List[Thread]:
    threads: List[Thread] = []
    for line in text.splitlines():
        begin, frame = _THREAD.match(line), _FRAME.match(line)
        if begin:
            threads.append(Thread(int(begin.group(1) or "0", 16), []))
        elif frame and threads and not _MEASURING.search(frame.group(1)):
            threads[-1].frames.append(Frame(frame.group(1), int(frame.group(2)), frame.group(3)))
    return threads


def main_first(threads: List[Thread], main: int) -> List[Thread]:
    return sorted(threads, key=lambda thread: thread.ident != main)


def own(frames: List[Frame]) -> Optional[int]:
    """Return the position of the script's innermost line; a library's line if no line is the script's."""
    for pattern in (_LIBRARY, _OURS):
        for position, frame in enumerate(frames):
            if not pattern.search(frame.file) and not _OURS.search(frame.file):
                return position
    return None


MOST_CHARACTERS = 100


def source(stack: List[Frame]) -> str:
    """Return the script's innermost line of code in a stack; empty if it is not known."""
    position = own(stack)
    if position is None:
        return ""
    frame = stack[position]
    linecache.checkcache(frame.file)
    return linecache.getline(frame.file, frame.line).strip()[:MOST_CHARACTERS]


def place(stack: List[Frame]) -> str:
    """Return where a stack is in the script, with the line's text: "train.py:16 (native())"; empty if nowhere."""
    position = own(stack)
    if position is None:
        return ""
    text = source(stack)
    return "%s:%d" % (os.path.basename(stack[position].file), stack[position].line) + (" (%s)" % text if text else "")


DATA, BACKWARD, COMMUNICATION, OPTIMIZER, SAVES = "data", "backward", "communication", "optimizer", "saves"
COMPILING, COLLECTING, IMPORTING, CHECKS = "compiling", "garbage collection", "imports", "checks"
IN_BACKWARD = "inside of backward"
"""A line that PyTorch calls while it goes backward: in a hook, or in the script's own function."""
# what a file of Python or PyTorch does: the end of the file, its function, the name that users know, the part of a step
_KNOWN = (
    (r"torch/_dynamo/convert_frame\.py$", r"\w+", "torch.compile", COMPILING),
    (r"torch/distributed/distributed_c10d\.py$", r"[a-z]\w*", "{}", COMMUNICATION),
    (r"torch/distributed/nn/functional\.py$", r"[a-z]\w*", "{}", COMMUNICATION),
    (r"torch/distributed/rendezvous\.py$", r"[a-z]\w*", "the rendezvous", COMMUNICATION),
    (r"torch/distributed/_functional_collectives\.py$", r"wait_tensor", "{}", COMMUNICATION),
    (r"_fsdp_param_group\.py$", r"wait_for_unshard", "fully_shard", COMMUNICATION),
    (r"torch/utils/data/dataloader\.py$", r"__next__", "DataLoader.__next__", DATA),
    (r"torch/utils/data/dataloader\.py$", r"__iter__|__init__", "DataLoader.__iter__", ""),
    (r"torch/autograd/|torch/_tensor\.py$", r"backward|_engine_run_backward", "backward", BACKWARD),
    (r"torch/optim/", r"step", "optimizer.step", OPTIMIZER),
    (r"echelon/train/check/(?:later_steps|row_trial)\.py$", r"_at_call|_try", "a comparison with one device", CHECKS),
    (r"torch/serialization\.py$", r"save", "torch.{}", SAVES),
    (r"torch/serialization\.py$", r"load", "torch.{}", ""),
    (r"/subprocess\.py$", r"communicate|wait|run|_wait", "a child process", ""),
    (r"/threading\.py$", r"join|_wait_for_tstate_lock", "Thread.join", ""),
    (r"/multiprocessing/", r"join|recv|get|wait", "multiprocessing", ""),
    (r"/queue\.py$", r"get|put", "Queue.{}", ""),
    (r"/ssl\.py$|/socket\.py$", r"[a-z]\w*", "the network", ""),
    (r"^<frozen importlib", r"_find_and_load", "import", IMPORTING),
)
_TABLE = tuple((re.compile(file), re.compile(function + r"\Z"), name, part) for file, function, name, part in _KNOWN)
_INNER = frozenset({"wrapper", "wait", "decorate_context", "_wait"})


def waits_in(frames: List[Frame]) -> str:
    """Return the name of the call that a stack is in, beyond the script's line; empty if there is none.

    The outermost name counts, as it is the one in the script's line. In echelon's own code an exchange counts.
    """
    position = own(frames)
    inner = frames[: len(frames) if position is None else position]
    names = [name for frame in reversed(inner) for name, _ in [known(frame.file, frame.function)] if name]
    if names:
        return names[0]
    if any(_OURS.search(frame.file) for frame in inner):
        return "an exchange between ranks"
    return inner[-1].function if inner else ""


def known(file: str, function: str) -> Tuple[str, str]:
    """Return the name of a call that users know, and the part of a step that it is; both may be empty."""
    if function not in _INNER:
        for files, functions, name, part in _TABLE:
            if files.search(file) and functions.match(function):
                return name.format(function), part
    return "", ""


def is_collective(frames: List[Frame]) -> bool:
    """Say whether a stack waits for other ranks."""
    position = own(frames)
    inner = frames[: len(frames) if position is None else position]
    return any(
        re.search(r"torch/distributed/|torch/nn/parallel/|torch/autograd/", frame.file)
        or (_OURS.search(frame.file) and "/train/" in frame.file)
        for frame in inner
    )


def is_library(frame: Frame) -> bool:
    """Say whether a frame is not the script's own."""
    return bool(_LIBRARY.search(frame.file))


def is_own(file: str) -> bool:
    """Say whether a file is the script's own, and neither a library nor echelon."""
    return not _LIBRARY.search(file) and not _OURS.search(file)


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
