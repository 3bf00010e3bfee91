"""Read what a run left in its directory, also if it still runs, or was cut off in the middle of a line."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from echelon.environment import digits, regular_files
from echelon.errors import UsageError
from echelon.hardware import files
from echelon.orders.checkpoint import VARIABLE
from echelon.orders.scale import ScaleOptions

FORMATS = {"plan.json": 1, "report.json": 1, "samples.jsonl": 1, "lines.json": 1}
"""The newest format of each file that this version reads."""
MOST_BYTES = 1 << 30

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The files of a run; a file that is missing is empty."""

    path: str
    plan: Fields
    booking: Fields
    """What `echelon submit` asked Slurm for."""
    report: Fields
    """Empty until the run has ended."""
    events: tuple[Fields, ...]
    samples: tuple[Fields, ...]
    lines: Fields
    """The lines of the script in which the ranks were: `monitor.lines` reads it."""

    @property
    def scale_options(self) -> ScaleOptions | None:
        """How the run scales its script; None: it does not, or another echelon made it."""
        fields = self.plan.get("scale_options")
        if not isinstance(fields, dict) or not fields.keys() <= set(ScaleOptions._fields):
            return None
        return ScaleOptions(**fields)

    @property
    def saves(self) -> bool:
        return any(name == VARIABLE for name, _ in self.plan.get("environ", ()))


def read(path: str) -> Recorded:
    """Read the files of a run directory; raise UsageError if one has a newer format, or belongs to another user."""
    events, samples = _lines(path, "events.jsonl"), _lines(path, "samples.jsonl")
    heads = {name: _object(path, name) for name in ("plan.json", "report.json", "lines.json")}
    _refuse_newer(path, {**heads, "samples.jsonl": samples[0] if samples else {}})
    return Recorded(
        path=path,
        plan=heads["plan.json"],
        booking=_object(path, "booking.json"),
        report=heads["report.json"],
        events=tuple(each for each in events if isinstance(each.get("time"), (int, float)) and "event" in each),
        samples=tuple(each for each in samples if isinstance(each.get("time"), (int, float))),
        lines=heads["lines.json"],
    )


def lines(path: str) -> Fields:
    """Return the newest state of the ranks' lines; empty if there is none."""
    return _object(path, "lines.json")


def read_heads(path: str) -> None:
    """Raise UsageError if a file of a run has a newer format, or belongs to another user."""
    first = _lines(path, "samples.jsonl", most_lines=1)
    heads = {name: _object(path, name) for name in ("plan.json", "report.json")}
    _refuse_newer(path, {**heads, "samples.jsonl": first[0] if first else {}})


def _refuse_newer(path: str, heads: dict[str, Fields]) -> None:
    for name, fields in heads.items():
        if isinstance(fields.get("format"), int) and fields["format"] > FORMATS[name]:
            raise UsageError(
                f"{os.path.join(path, name)} has format {fields['format']}, and this echelon reads formats up to "
                f"{FORMATS[name]}",
                hint="use the echelon that made the run, or a newer one",
            )


def earlier_jobs(path: str) -> list[str]:
    """Return the folders of the jobs of a chain before the present one, in their order."""
    folder = os.path.join(path, "jobs")
    names = filter(digits.is_number, files.names(folder))
    return [os.path.join(folder, name) for name in sorted(names, key=int)]


def _object(path: str, name: str) -> Fields:
    return regular_files.json_object(_text(path, name))  # empty while it is being written, or if the disk was full


def _lines(path: str, name: str, most_lines: int | None = None) -> list[Fields]:
    """Return the objects of a file of lines; a broken line, such as the last one of a killed run, is left out."""
    objects = map(regular_files.json_object, _text(path, name).splitlines()[:most_lines])
    return [fields for fields in objects if fields]


def _text(path: str, name: str) -> str:
    try:
        return regular_files.read(os.path.join(path, name), most_bytes=MOST_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UsageError(f"{os.path.join(path, name)} cannot be read: {error.strerror}", hint="echelon runs") from None
