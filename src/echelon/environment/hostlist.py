"""Slurm's compact lists: node names (`nid[005000-005003,5010]`) and task counts (`4(x2),8`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from . import digits
from .errors import HostlistError

_SEPARATORS = ", \t\n"  # the separators of Slurm's own hostlist_create
MOST_NODES = 1 << 18  # the largest machines have ten thousand nodes; each name costs memory
_TOO_MANY = f"there are more than {MOST_NODES} nodes"


def expand(text: str) -> list[str]:
    """Return the node names of a list in the order of `scontrol show hostnames`."""
    names: list[str] = []
    for start, end in _items(text):
        pieces = _alternatives(text, start, end)
        if len(names) + math.prod(len(piece) for piece in pieces) > MOST_NODES:
            raise HostlistError(text, start, _TOO_MANY)
        names += _products(pieces, len(pieces) - (1 if text[end - 1] == "]" else 2))
    return names


def first(text: str) -> str:
    """Return the first node name of a list without expanding the list."""
    spans = _items(text)
    if not spans:
        raise HostlistError(text, 0, "there is no node")
    start, end = spans[0]
    return "".join(alternatives[0] for alternatives in _alternatives(text, start, end, limit=1))


def compress(names: Iterable[str]) -> str:
    """Write nid005000, nid005001, nid005003 as nid[005000-005001,005003]."""
    alone: list[str] = []
    groups: dict[tuple[str, int], list[int]] = {}
    for name in dict.fromkeys(names):
        stem = name.rstrip("0123456789")
        width = len(name) - len(stem)
        if stem and 0 < width <= digits.MOST_DIGITS:
            groups.setdefault((stem, width), []).append(int(name[-width:]))
        else:
            alone.append(name)
    written = [_bracketed(stem, width, sorted(numbers)) for (stem, width), numbers in groups.items()]
    return ",".join([*written, *alone])


def _bracketed(stem: str, width: int, numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    ranges = ["-".join(f"{end:0{width}d}" for end in run) for run in runs]
    return f"{stem}{ranges[0]}" if len(numbers) == 1 else f"{stem}[{','.join(ranges)}]"


def expand_counts(text: str) -> list[int]:
    """Return one number per node from Slurm's `4(x2),8`."""
    counts: list[int] = []
    position = 0
    for word in text.split(",") if text else ():
        number, repeated, times = word.partition("(x")
        if repeated and not times.endswith(")"):
            raise HostlistError(text, position + len(word), "the repetition is not closed")
        times = times[:-1] if repeated else "1"
        if not (digits.is_number(number) and digits.is_number(times)):
            raise HostlistError(text, position, f"{word!r} is no count")
        if len(counts) + int(times) > MOST_NODES:
            raise HostlistError(text, position, _TOO_MANY)
        counts += [int(number)] * int(times)
        position += len(word) + 1
    return counts


def compress_counts(counts: Sequence[int]) -> str:
    """Write one number per node the way Slurm does."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)


def _products(pieces: list[list[str]], last_bracket: int) -> list[str]:
    """Return all names that the pieces produce, in Slurm's order."""
    # a[0-1]b[0-1]c[0-1] is a0b0c0 a0b0c1 a1b0c0 a1b0c1 a0b1c0 …: the last piece varies fastest, then the first.
    names = [""]
    for index, alternatives in enumerate(pieces):
        if index < last_bracket:
            names = [name + piece for piece in alternatives for name in names]
        else:
            names = [name + piece for name in names for piece in alternatives]
    return names


def _items(text: str) -> list[tuple[int, int]]:
    """Yield the spans between separators outside of brackets."""
    spans: list[tuple[int, int]] = []
    start, opened = 0, -1
    for position, char in enumerate(text):
        if char == "[":
            if opened >= 0:
                raise HostlistError(text, position, "a bracket opens inside of a bracket")
            opened = position
        elif char == "]":
            if opened < 0:
                raise HostlistError(text, position, "a bracket closes that was never opened")
            opened = -1
        elif opened < 0 and char in _SEPARATORS:
            spans.append((start, position))
            start = position + 1
    if opened >= 0:
        raise HostlistError(text, opened, "a bracket opens that is never closed")
    spans.append((start, len(text)))
    return [span for span in spans if span[0] < span[1]]


def _alternatives(text: str, start: int, end: int, limit: int | None = None) -> list[list[str]]:
    """Return the alternatives for each piece of an item: a literal, or the numbers of a bracket."""
    pieces: list[list[str]] = []
    while start < end:
        opening = text.find("[", start, end)
        literal_end = end if opening < 0 else opening
        if start < literal_end:
            pieces.append([text[start:literal_end]])
        if opening < 0:
            break
        closing = text.index("]", opening)
        pieces.append(_numbers(text, opening + 1, closing, limit))
        start = closing + 1
    return pieces


def _numbers(text: str, start: int, end: int, limit: int | None) -> list[str]:
    """Return the numbers of a bracket, padded like the lower end of each range."""
    numbers: list[str] = []
    for word in text[start:end].split(","):
        low, dash, high = word.partition("-")
        high = high if dash else low
        if not (digits.is_number(low) and digits.is_number(high)):
            raise HostlistError(text, start, f"{word!r} is no number and no range of numbers")
        if int(high) < int(low):
            raise HostlistError(text, start, f"the range {word!r} ends before it begins")
        if limit is None and int(high) - int(low) >= MOST_NODES:
            raise HostlistError(text, start, _TOO_MANY)
        last = int(high) if limit is None else min(int(high), int(low) + limit - 1)
        numbers += [str(number).zfill(len(low)) for number in range(int(low), last + 1)]
        start += len(word) + 1
    return numbers
