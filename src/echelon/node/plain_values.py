"""Read the numbers, texts, lists, tuples and dicts of a pickled file; nothing in the file is run."""

import pickletools
from typing import Any, Callable, Dict, List

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
