"""Read the dumps of PyTorch's flight recorder: the last collective that a rank has begun and not ended."""

import os
import pickletools
import stat
from typing import Any, Callable, Dict, List, Mapping

VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
# what PyTorch writes without these variables: since 2.9, and before
DEFAULTS = ("~/.cache/torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_")
LARGEST_BYTES = 64 << 20


def pending(rank: int, environ: Mapping[str, str], since: float) -> str:
    """Return "all_reduce number 812 of [[1000]]" from a rank's dump; empty without a dump from after `since`."""
    named = [environ[name] for name in VARIABLES if environ.get(name)]
    for prefix in named or DEFAULTS:
        entries = _entries("%s%d" % (os.path.expanduser(prefix), rank), since)
        open_entries = [entry for entry in entries if not entry.get("retired")]
        if open_entries:
            first = open_entries[0]
            name = str(first.get("profiling_name", "?")).rpartition(":")[2]
            number, sizes = first.get("collective_seq_id", "?"), first.get("input_sizes", "?")
            return "%s number %s of %s" % (name, number, sizes)
    return ""


def _entries(path: str, since: float) -> List[Dict[str, Any]]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return []
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if not is_ours or status.st_mtime < since or status.st_size > LARGEST_BYTES:
            return []
        try:
            dump = read(file.read())
            return [entry for entry in dump["entries"] if isinstance(entry, dict)]
        except (ValueError, LookupError, TypeError, AttributeError):  # torn, or not PyTorch's
            return []


_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: Dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_LITERALS = ("INT", "LONG", "UNICODE", "FLOAT", "BYTES", "STRING")
_SKIPPED = ("PROTO", "FRAME", "STOP")


class NotPlain(ValueError):
    """The file has more than plain values."""


def read(content: bytes) -> Any:
    """Return the value; raise ValueError or IndexError for a file that is torn or not plain."""
    stack: List[Any] = []
    memo: Dict[int, Any] = {}
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif "PUT" in name or name == "MEMOIZE":
            memo[len(memo) if argument is None else int(str(argument))] = stack[-1]
        elif "GET" in name:
            stack.append(memo[int(str(argument))])
        elif any(kind in name for kind in _LITERALS):
            stack.append(argument)
        elif name not in _SKIPPED:
            _gather(stack, name)
    return stack.pop()


def _gather(stack: List[Any], name: str) -> None:
    """Carry out an instruction that puts values into a list, a tuple or a dict."""
    if name == "MARK":
        stack.append(_MARK)
    elif name in ("APPENDS", "SETITEMS", "TUPLE"):
        begin = max(n for n, value in enumerate(stack) if value is _MARK)
        _put(stack, name, stack[begin + 1 :], begin)
    elif name in ("APPEND", "TUPLE1"):
        _put(stack, name, stack[-1:], len(stack) - 1)
    elif name in ("SETITEM", "TUPLE2"):
        _put(stack, name, stack[-2:], len(stack) - 2)
    elif name == "TUPLE3":
        _put(stack, name, stack[-3:], len(stack) - 3)
    else:
        raise NotPlain("the file has the instruction %s" % name)


def _put(stack: List[Any], name: str, values: List[Any], begin: int) -> None:
    del stack[begin:]
    if name.startswith("TUPLE"):
        stack.append(tuple(values))
    elif name.startswith("APPEND"):
        stack[-1].extend(values)
    else:
        stack[-1].update(zip(values[::2], values[1::2]))  # noqa: B905
