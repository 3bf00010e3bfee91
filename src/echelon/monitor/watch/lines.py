"""Lines of a terminal, made of parts with styles, and cut to a width before any colour is added."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

Line = list[tuple[str, str]]
"""Parts of a line, each with a style; "" is plain."""
_CODES = {"bold": "1", "dim": "2", "chosen": "7", "bad": "1;37;41", "warning": "30;43", "good": "32"}
HEAT = ("196", "202", "208", "214", "220", "190", "154", "118", "82", "46")
"""Colours of the 256-colour palette for a busy share of 0 to 90 % and more: red to green."""
BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN_BLOCKS = "_.-~=+*#"
"""For terminals that show no Unicode."""


def plain(text: str, style: str = "") -> Line:
    """Return a line of one part."""
    return [(text, style)]


def heat(share: float) -> str:
    """Return the style of a busy share."""
    return f"heat {min(9, max(0, int(share * 10)))}"


def encode(line: Line, width: int, *, with_colour: bool) -> str:
    """Return a line of at most `width` columns."""
    text, left = "", width
    for style, parts in groupby(line, key=lambda part: part[1]):
        whole = "".join(part for part, _ in parts)[:left]
        left -= len(whole)
        text += _styled(whole, style) if with_colour and style and whole else whole
    return text.rstrip() if not with_colour else text


def _styled(text: str, style: str) -> str:
    code = f"30;48;5;{HEAT[int(style[5:])]}" if style.startswith("heat ") else _CODES[style]
    return f"\033[{code}m{text}\033[0m"


def sparkline(values: Sequence[float], width: int, blocks: str = BLOCKS) -> str:
    """Return a curve of the newest values, one character each, or the mean of several where there are more.

    >>> sparkline([1, 2, 3, 4], 4)
    '▁▃▅█'
    """
    if width <= 0 or not values:
        return ""
    size = max(1, -(-len(values) // width))
    starts = range(len(values) % size if len(values) > size else 0, len(values), size)
    means = [sum(values[start : start + size]) / len(values[start : start + size]) for start in starts]
    low, high = min(means), max(means)
    scale = (len(blocks) - 1) / (high - low) if high > low else 0.0
    return "".join(blocks[int((value - low) * scale)] for value in means[-width:])
