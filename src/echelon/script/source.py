"""Parse Python source as Python does, and check its syntax without running it."""

import ast
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from echelon.errors import UsageError

JUDGED_BYTES = 1 << 20  # about 0.3 s of compiling on one core; the ranks judge larger files
WIDTH = 100  # columns of a source line that an error shows
VERSION = "{}.{}.{}".format(*sys.version_info[:3])
# 3.10 and 3.11 raise ValueError for a null byte; deep nesting ends in RecursionError or MemoryError
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the ranks show the warnings again, where the user expects them
        yield


def parse(source: bytes, path: str) -> ast.Module | None:
    """Return the syntax tree, or None if this Python cannot parse the source."""
    with _quiet():
        try:
            return ast.parse(source, path)
        except UNREADABLE:
            return None


def judge(source: bytes, path: str, *, hint: str) -> None:
    """Raise UsageError if this Python cannot compile the source."""
    if len(source) > JUDGED_BYTES:
        return
    with _quiet():
        try:
            compile(source, f"<{path}>", "exec", dont_inherit=True)  # else Python would read the file again
        except SyntaxError as error:
            message, excerpt = _syntax_message(error, source, path)
            raise UsageError(message, details=excerpt, hint=hint) from None
        except (RecursionError, MemoryError):
            message = f"{path} is nested too deeply for Python {VERSION} to compile"
            raise UsageError(message, hint=hint) from None


def _syntax_message(error: SyntaxError, source: bytes, path: str) -> tuple[str, str]:
    reason = f"Python {VERSION} finds a syntax error in {path}"
    if not error.lineno:
        return f"{reason}: {error.msg}", ""
    text, column = error.text or "", error.offset or 0
    if not text:  # an error after parsing: Python has no source line, and counts bytes of UTF-8
        text = _line(source, error.lineno)
        column = len(text.encode()[: max(column - 1, 0)].decode("utf-8", "ignore")) + 1 if column > 0 else 0
    place = f"line {error.lineno}, column {column}" if column > 0 else f"line {error.lineno}"
    return f"{reason}, {place}: {error.msg}", _excerpt(text, column)


def _excerpt(text: str, column: int) -> str:
    shown = text.rstrip("\n")
    stripped = shown.lstrip()[:WIDTH]
    if not stripped:
        return ""
    indent = column - 1 - (len(shown) - len(shown.lstrip()))
    caret = "\n    " + " " * indent + "^" if 0 <= indent <= len(stripped) else ""
    return f"    {stripped}{caret}"


def _line(source: bytes, number: int) -> str:
    import io
    import tokenize  # only an error pays these 5 ms

    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    lines = source.decode(encoding, "replace").splitlines()
    return lines[number - 1] if 0 < number <= len(lines) else ""
