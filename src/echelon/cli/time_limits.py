"""The time limits of a run, as `echelon run` reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from echelon.errors import UsageError

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def of_run(values: Mapping[str, str]) -> float:
    """Return the time limit of a run in seconds: --timeout counts seconds, --time minutes, as Slurm does."""
    if "time" not in values:
        return _duration("--timeout", values.get("timeout", "0"), "give seconds, or a number with m, h or d", "90m")
    if "timeout" in values:
        raise UsageError("--time and --timeout both limit the run", hint=f"remove --timeout {values['timeout']}")
    from echelon.units import minutes

    return minutes(values["time"]) * 60.0


def of_hang(values: Mapping[str, str]) -> float | str:
    """Return the seconds of silence after which a run hangs, "auto" or "off"."""
    text = values.get("hang_timeout", "auto")
    if text in ("auto", "off"):
        return text
    forms = "give seconds above 0, or a number with m, h or d, or auto or off"
    seconds = _duration("--hang-timeout", text, forms, "10m")
    if seconds == 0:
        raise UsageError(f"--hang-timeout {text}: {forms}", hint="echelon run --hang-timeout off …")
    return seconds


def _duration(name: str, text: str, forms: str, example: str) -> float:
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)([a-z]*)", text)
    if not match or match.group(2) not in _UNITS:
        raise UsageError(f"{name} {text or repr(text)}: {forms}", hint=f"echelon run {name} {example} …")
    return float(match.group(1)) * _UNITS[match.group(2)]
