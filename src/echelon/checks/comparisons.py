"""Are the nodes alike, do their clocks agree, and do they reach each other?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Generic, TypeVar

from echelon.checks.finding import Finding, Wanted, leave_out, warning
from echelon.node.survey.nouns import Survey
from echelon.units import GIB, size


def check_alike(surveys: Sequence[Survey], _wanted: Wanted) -> Iterator[Finding]:
    """Report nodes whose hardware differs from that of most nodes."""
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


MUST_AGREE = (
    "NCCL_", "RCCL_", "FI_", "OFI_", "CXI_", "GLOO_", "MASTER_", "TORCH_NCCL_", "TORCH_FR_",
    "TORCH_DIST_USE_NCCL2", "OMP_NUM_THREADS", "HSA_", "UCX_",
)  # fmt: skip
OF_EACH_NODE = ("NCCL_HOSTID", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_IB_HCA")


def check_settings(surveys: Sequence[Survey], _wanted: Wanted) -> Iterator[Finding]:
    """Report network variables whose values differ between nodes."""
    names = {name for survey in surveys for name in survey.settings.variables}
    for name in sorted(name for name in names if name.startswith(MUST_AGREE) and name not in OF_EACH_NODE):
        majority_value = majority(surveys, "settings", partial(_value, name))
        for survey, value in majority_value.others if majority_value is not None else ():
            usual = majority_value.value if majority_value is not None else ""
            yield Finding(
                node=survey.node,
                severity="warning",
                message=f"{name} is {value or 'not set'}; on most nodes it is {usual or 'not set'}",
                evidence="look for a start-up file of the shell, or a prologue of this node",
                remedy=f"echelon run --env {name}={usual or value} …   sets the same value on all nodes",
            )


def _value(name: str, survey: Survey) -> str:
    return survey.settings.variables.get(name, "")


FIELDS = (
    ("error", "python", "Python"),
    ("warning", "driver", "the devices' driver"),
    ("note", "kernel", "the kernel"),
    ("error", "container", "the container"),
)
SERIOUS = ("torch", "triton", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "deepspeed", "echelon")


def check_versions(surveys: Sequence[Survey], _wanted: Wanted) -> Iterator[Finding]:
    """Report nodes that lack a package, or have another version than most nodes."""
    for severity, name, title in FIELDS:
        yield from _drift(surveys, severity, title, name, "")
    names = sorted({name for survey in surveys for name in survey.software.packages})
    for name in names:
        yield from _drift(surveys, "error" if name in SERIOUS else "warning", name, "packages", name)


def _drift(surveys: Sequence[Survey], severity: str, title: str, field: str, key: str) -> Iterator[Finding]:
    def read(survey: Survey) -> str:
        value = getattr(survey.software, field)
        return str(value.get(key, "")) if key else str(value)

    majority_value = majority(surveys, "software", read)
    for survey, value in majority_value.others if majority_value is not None else ():
        usual = majority_value.value if majority_value is not None else ""
        place = survey.software.places.get(key, "") if key else survey.software.interpreter
        yield Finding(
            node=survey.node,
            severity=severity,
            message=f"{title} is {value or 'missing'}; on most nodes it is {usual or 'missing'}",
            evidence=place,
            remedy=f"install it where every node sees it, or leave the node out: --exclude={survey.node}",
        )


Value = TypeVar("Value", bound=Hashable)


@dataclass(frozen=True)
class Majority(Generic[Value]):
    """The value that most nodes have; in a tie, the first node's value."""

    value: Value
    count: int
    others: list[tuple[Survey, Value]]


def majority(surveys: Sequence[Survey], part: str, read: Callable[[Survey], Value]) -> Majority[Value] | None:
    """Compare a value of all nodes that answered `part`; return None when fewer than two answered."""
    values = [(survey, read(survey)) for survey in surveys if part in survey.answered]
    if len(values) < 2:
        return None
    (value, count), *_ = Counter(each for _, each in values).most_common(1)
    return Majority(value, count, [(survey, each) for survey, each in values if each != value])


def check_reach(surveys: Sequence[Survey], _wanted: Wanted) -> Iterator[Finding]:
    """Report nodes that others cannot reach, and nodes that cannot reach others."""
    by_target: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for survey in surveys:
        for node, why in survey.unreached.items():
            by_target[node].append((survey.node, why))
    unreachable = {node for node, tries in by_target.items() if len(tries) > 1 or len(surveys) == 2}
    for node in sorted(unreachable):
        yield _unreached(node, "cannot be reached by other nodes", by_target[node], "error")
    for survey in surveys:
        left = {node: why for node, why in survey.unreached.items() if node not in unreachable}
        if len(left) > 1:
            yield _unreached(survey.node, "cannot reach other nodes", list(left.items()), "error")
        elif left:
            node, why = next(iter(left.items()))
            yield _unreached(survey.node, f"cannot reach {node}, which others do", [(node, why)], "error")


def _unreached(node: str, message: str, tries: Sequence[tuple[str, str]], severity: str) -> Finding:
    why = sorted({reason for _, reason in tries})
    others = ", ".join(other for other, _ in tries[:3]) + (" …" if len(tries) > 3 else "")
    names = any("resolve" in reason for reason in why)
    return Finding(
        node=node,
        severity=severity,
        message=f"{message}: {'; '.join(why[:2])}",
        evidence=f"tried with {len(tries)}: {others}",
        remedy=f"getent hosts {node}   on the other nodes: their name service does not know it"
        if names
        else leave_out(node),
    )


NOTICED_SECONDS = 1.0  # people read the logs of several nodes side by side
WRONG_SECONDS = 30.0  # beyond this, tickets and certificates are refused, and files seem to come from the future
FIRST_TIME = 1_704_067_200.0  # 2024-01-01: an earlier clock was never set


def check_clocks(surveys: Sequence[Survey], wanted: Wanted) -> Iterator[Finding]:
    """Report clocks that differ from the median of all clocks."""
    answered = [survey for survey in surveys if survey.answered]
    if not answered:
        return
    middle = median(survey.ahead_seconds for survey in answered)
    for survey in answered:
        apart = survey.ahead_seconds - middle
        if 0 < survey.time < FIRST_TIME:
            yield _wrong_clock(survey, "error", "its clock was never set", f"seconds since 1970: {survey.time:.0f}")
        elif abs(apart) >= NOTICED_SECONDS and len(answered) > 1:
            severity = "error" if abs(apart) >= WRONG_SECONDS else "warning"
            direction = "ahead" if apart > 0 else "behind"
            yield _wrong_clock(
                survey, severity, f"its clock is {abs(apart):.0f} s {direction}", f"median of {len(answered)} nodes"
            )
    if wanted.now and len(answered) > 1 and abs(middle) >= WRONG_SECONDS:
        yield warning(
            message=f"the nodes' clocks are {abs(middle):.0f} s {'ahead of' if middle > 0 else 'behind'} this one",
            evidence="where echelon check was started",
            remedy="chronyc tracking   shows which clock is wrong",
        )


def _wrong_clock(survey: Survey, severity: str, message: str, evidence: str) -> Finding:
    return Finding(
        node=survey.node, severity=severity, message=message, evidence=evidence,
        remedy=leave_out(survey.node),
    )  # fmt: skip
