"""Are the nodes alike: devices, memory, cores, NICs?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from echelon.checks.between.majority import majority
from echelon.checks.finding import Finding, Wanted, leave_out
from echelon.node.survey.nouns import Survey
from echelon.units import GIB, size


def look(surveys: Sequence[Survey], wanted: Wanted) -> Iterator[Finding]:
    """Report nodes whose hardware differs from that of most nodes."""
    del wanted
    for severity, part, read, describe in _ROWS:
        majority_value = majority(surveys, part, read)
        if majority_value is None:
            continue
        for survey, value in majority_value.others:
            yield Finding(
                node=survey.node,
                severity=severity,
                message=describe(value, majority_value.value),
                evidence=f"{majority_value.count} nodes: {describe(majority_value.value, majority_value.value)}",
                remedy=leave_out(survey.node),
            )


def num_devices(survey: Survey) -> int:
    return sum(device.is_allowed for device in survey.devices.devices)


def _models(survey: Survey) -> str:
    return ", ".join(sorted({device.model for device in survey.devices.devices if device.is_allowed and device.model}))


def _device_memory(survey: Survey) -> int:
    known = [each.memory_bytes for each in survey.devices.devices if each.is_allowed and each.memory_bytes]
    return min(known, default=0)


def _memory(survey: Survey) -> int:
    """Return memory in units of 8 GiB: firmware reserves a little more or less on each node."""
    return round(survey.cores.memory_bytes / (8 * GIB))


def _nics(survey: Survey) -> str:
    fast = Counter(
        f"{each.kind} {each.bits_per_second / 1e9:g} Gbit/s" if each.bits_per_second else each.kind
        for each in survey.network.interfaces
        if each.is_up and each.kind in ("slingshot", "infiniband")
    )
    return ", ".join(f"{count} × {kind}" for kind, count in sorted(fast.items())) or "none of a fast network"


def _of(value: object, usual: object) -> str:
    return f"{value} of {usual} devices" if value != usual else f"{value} devices"


_ROWS: tuple[tuple[str, str, Callable[[Survey], int | str], Callable[[int | str, int | str], str]], ...] = (
    ("error", "devices", num_devices, _of),
    ("warning", "devices", _models, lambda value, _: f"its devices are {value or 'not known'}"),
    ("warning", "devices", _device_memory, lambda value, _: f"its devices have {size(int(value))}"),
    ("warning", "cores", lambda survey: survey.cores.num_cores, lambda value, _: f"it has {value} cores"),
    ("warning", "cores", lambda survey: survey.cores.num_usable, lambda value, _: f"{value} cores may be used"),
    ("warning", "cores", _memory, lambda value, _: f"it has about {int(value) * 8} GiB of memory"),
    ("warning", "network", _nics, lambda value, _: f"its network cards that are up: {value}"),
    ("error", "software", lambda survey: survey.software.architecture, lambda value, _: f"it is {value}"),
)
