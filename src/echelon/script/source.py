"""Read Python source as Python reads it, and judge its syntax without running it."""

import ast
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from echelon.errors import UsageError

JUDGED_BYTES = (
    1 << 20
)  # about 0.3 s of compiling on one core; larger files are judged by the ranks themselves
WIDTH = 100  # columns of a source line that an error shows
VERSION = "{}.{}.{}".format(*sys.version_info[:3])
# 3.10 and 3.11 raise ValueError for a null byte; deep nesting ends in RecursionError or MemoryError
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the ranks show them once more, where the user expects them
        yield


def parse(source: bytes, path: str) -> ast.Module | None:
    """Return the syntax tree, or None where this Python cannot read the source."""
    with _quiet():
        try:
            return ast.parse(source, path)
        except UNREADABLE:
            return None


def judge(source: bytes, path: str, *, hint: str) -> None:
    """Raise UsageError where this Python would not compile the source."""
    if len(source) > JUDGED_BYTES:
        return
    with _quiet():
        try:
            compile(source, path, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise UsageError(_syntax_message(error, source, path), hint=hint) from None
        except (RecursionError, MemoryError):
            message = f"{path} is nested too deeply for Python {VERSION} to compile"
            raise UsageError(message, hint=hint) from None


def _syntax_message(error: SyntaxError, source: bytes, path: str) -> str:
    reason = f"Python {VERSION} finds a syntax error in {path}"
    if not error.lineno:
        return f"{reason}: {error.msg}"
    lines = [f"{reason}, line {error.lineno}"]
    text = error.text or _line(source, error.lineno)
    if error.offset and error.offset > 0:
        lines[0] += f", column {error.offset}"
    lines[0] += f": {error.msg}"
    if text.strip():
        shown = text.rstrip("\n")
        stripped = shown.lstrip()
        lines.append(f"    {stripped[:WIDTH]}")
        column = (error.offset or 0) - 1 - (len(shown) - len(stripped))
        if 0 <= column <= min(len(stripped), WIDTH):
            lines.append("    " + " " * column + "^")
    return "\n".join(lines)


def _line(source: bytes, number: int) -> str:
    import io
    import tokenize  # 5 ms that only an error has to pay

    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    lines = source.decode(encoding, "replace").splitlines()
    return lines[number - 1] if 0 < number <= len(lines) else ""
