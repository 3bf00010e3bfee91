"""Parse and format times, sizes and bills as people and Slurm write them; align tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from echelon.errors import UsageError

GIB = 1 << 30
_SIZES = {"M": 1 << 20, "G": GIB, "T": 1 << 40}
_UNIT_MINUTES = {"s": 1 / 60, "m": 1, "h": 60, "d": 24 * 60}
TIMES = "30 (minutes), 1:30:00, 2-00:00:00, 90m, 36h or 2d"


def minutes(text: str, option: str = "--time") -> int:
    """Read a time limit as Slurm does, or a number with s, m, h or d; whole minutes, rounded up.

    Raises UsageError for anything else, such as 1:70.
    """
    if match := re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)([smhd])", text):
        total = float(match.group(1)) * _UNIT_MINUTES[match.group(2)]
    elif match := re.fullmatch(r"(?:([0-9]{1,12})-)?([0-9]{1,12})(?::([0-9]{1,12}))?(?::([0-9]{1,12}))?", text):
        total = _slurm_minutes(text, option, *match.groups())
    else:
        raise UsageError(f"{option} {text or repr('')}: not a time; a time is {TIMES}", hint=f"{option} 1:00:00")
    if total <= 0:
        raise UsageError(f"{option} {text}: the time must be more than nothing", hint=f"{option} 1:00:00")
    return max(1, -int(-total // 1))


def _slurm_minutes(
    text: str, option: str, days: str | None, first: str, second: str | None, third: str | None
) -> float:
    if days is not None:  # days-hours[:minutes[:seconds]]
        parts = (int(days), int(first), int(second or 0), int(third or 0))
    elif third is not None:  # hours:minutes:seconds
        parts = (0, int(first), int(second or 0), int(third))
    elif second is not None:  # minutes:seconds
        parts = (0, 0, int(first), int(second))
    else:
        return float(first)
    num_days, hours, mins, seconds = parts
    if seconds > 59 or (second is not None and third is not None and mins > 59) or (days is not None and hours > 23):
        raise UsageError(
            f"{option} {text}: minutes and seconds go from 0 to 59 (and hours after days to 23); "
            "and Slurm reads A:B as minutes and seconds",
            hint=f"{option} 1:10:00   an hour and ten minutes",
        )
    return num_days * 1440 + hours * 60 + mins + seconds / 60


def slurm_time(total_minutes: int) -> str:
    """Write minutes as Slurm's D-HH:MM:SS, without D- below one day."""
    days, rest = divmod(total_minutes, 1440)
    clock = f"{rest // 60:02d}:{rest % 60:02d}:00"
    return f"{days}-{clock}" if days else clock


def size_bytes(text: str, option: str = "--mem") -> int:
    """Read a size such as 60G (powers of 1024, as in Slurm); raise UsageError for anything else."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([MGT])(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match or float(match.group(1)) <= 0:
        is_bare = bool(re.fullmatch("0*[1-9][0-9]{0,11}", text))  # Slurm would read megabytes
        raise UsageError(
            f"{option} {text or repr('')}: not a size; a size has a unit: 60G, 1.5T or 500M",
            hint=f"{option} {text if is_bare else 60}G",
        )
    return int(float(match.group(1)) * _SIZES[match.group(2).upper()])


def size(num_bytes: int) -> str:
    """Write a size for a person, exact to a tenth: 480 GiB, 217.5 GiB."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= factor and (unit != "TiB" or num_bytes % (1 << 40) == 0):
            return f"{num_bytes / factor:.1f}".removesuffix(".0") + f" {unit}"
    return f"{num_bytes} B"


def slurm_size(num_bytes: int) -> str:
    """Write a size as Slurm's --mem takes it: 480G, or whole mebibytes if it is no multiple."""
    return f"{num_bytes // GIB}G" if num_bytes % GIB == 0 else f"{num_bytes // (1 << 20)}M"


def amount(value: float) -> str:
    """Write a number with at most two digits after the point: 16, 0.5, 3.33."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def rate(value: float) -> str:
    """Write how many a second: 0.42, 18.3, 1,343.

    >>> rate(0.4216), rate(18.26), rate(1342.77)
    ('0.42', '18.3', '1,343')
    """
    return f"{value:,.0f}" if value >= 100 else amount(round(value, 1 if value >= 10 else 2))


def cost(value: float, unit: str) -> str:
    """Write a bill: 1 GPU-hour, 4.5 GPU-hours."""
    text = amount(value)
    return f"{text} {unit.removesuffix('s') if text == '1' else unit}"


def duration(seconds: float) -> str:
    """Return a duration for people: 4.2 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def step_time(seconds: float) -> str:
    """Write a time that may be short: 35 µs, 2.4 ms, 351 ms, 3.20 s, 2 h 05 min.

    >>> step_time(0.0024), step_time(3.2)
    ('2.4 ms', '3.20 s')
    """
    if seconds >= 60:
        return duration(seconds)
    if seconds >= 1 or not seconds:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def counted(number: int, noun: str) -> str:
    """Write a number of things.

    >>> counted(1, "rank"), counted(2, "rank"), counted(2, "process")
    ('1 rank', '2 ranks', '2 processes')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def rows_of(word: str, texts: Iterable[str]) -> list[str]:
    """Return a line for each text, with the word in a column before the first.

    >>> rows_of("speed", ["3 a second", "1,343 samples"])
    ['speed     3 a second', '          1,343 samples']
    """
    return [f"{'' if index else word:<10}{text}".rstrip() for index, text in enumerate(texts)]


def aligned(rows: Sequence[Sequence[str]], *, to_right: bool = False) -> list[str]:
    """Return the lines of a table; each column is as wide as its widest cell.

    >>> aligned([("rank", "node"), ("12", "a")])
    ['rank  node', '12    a']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pad = str.rjust if to_right else str.ljust
    return ["  ".join(pad(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
