"""Write verdicts for a person, and as data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from echelon.monitor.traces.verdict import (
    BY_OPTIMIZER,
    COMMUNICATION,
    COMPUTE,
    COPIES,
    IDLE,
    INPUT,
    KINDS,
    LAUNCH,
    OPTIMIZER,
    WHOLE,
    TraceVerdict,
)
from echelon.units import counted, rows_of, step_time

LONGEST_NAME = 60
LEAST_SHOWN = 0.0005
DEVICES = {"cuda": "CUDA", "hip": "ROCm", "cpu": "CPU"}
HELPS = {
    INPUT: "more workers of the DataLoader (num_workers=) if cores are idle, persistent_workers=True; less work each",
    COMPUTE: "lower precision (torch.autocast), torch.compile, or more ranks",
    OPTIMIZER: "fused=True or foreach=True in the optimizer; fewer, larger steps (gradient accumulation)",
    COMMUNICATION: "a larger batch per rank; fewer or smaller messages; echelon check --collectives tests the network",
    COPIES: "pin_memory=True in the DataLoader, .to(device, non_blocking=True), and fewer .item() and .cpu()",
    LAUNCH: "torch.compile (in mode reduce-overhead it uses CUDA graphs), or a larger batch: the operations are short",
    IDLE: "look at what Python does between operations: a profile with --tool py-spy shows it",
}
"""What shortens each kind."""


def text(verdicts: Sequence[TraceVerdict], where: Sequence[str] = ()) -> str:
    """Return the lines of one verdict or of several, and the rank that makes the others wait.

    `where` are sentences about the lines of the script.
    """
    lines: list[str] = []
    waiting = who_is_waited_for(verdicts)
    for verdict in verdicts:
        waits = waiting is not None and verdict is not waiting.verdict and verdict.bound == COMMUNICATION
        helps = f"{_name(waiting.verdict)} first: see the last line" if waiting and waits else HELPS[verdict.bound]
        lines += [*_of_one(verdict), *rows_of("helps", [helps]), ""]
    if waiting is not None:
        shares = f"communication takes {waiting.share:.0%} of their time and {waiting.own_share:.0%} of its own"
        longer = f"{waiting.kind} takes it {step_time(waiting.more_seconds)} a step longer than them"
        lines += rows_of("waits", [f"the others wait for {_name(waiting.verdict)}: {shares}; {longer}"])
    elif len(verdicts) > 1:
        lines += rows_of("waits", ["no rank makes the others wait: all spend about the same time in communication"])
    elif not where:
        del lines[-1]
    return "\n".join([*lines, *rows_of("where", where)]) + "\n"


def as_plain(verdicts: Sequence[TraceVerdict]) -> dict[str, Any]:
    waiting = who_is_waited_for(verdicts)
    waited = None
    if waiting is not None:
        waited = {
            "path": waiting.verdict.path, "rank": waiting.verdict.rank, "kind": waiting.kind,
            "more_seconds_a_step": waiting.more_seconds, "own_communication": round(waiting.own_share, 4),
            "communication_of_others": round(waiting.share, 4),
        }  # fmt: skip
    return {"format": 1, "traces": [_plain(verdict) for verdict in verdicts], "waited_for": waited}


def _plain(verdict: TraceVerdict) -> dict[str, Any]:
    return {
        "path": verdict.path, "rank": verdict.rank, "world_size": verdict.world_size, "device": verdict.device,
        "bound": verdict.bound, "shares": {kind: round(share, 4) for kind, share in verdict.shares.items()},
        "hidden_communication": round(verdict.hidden_communication, 4), "steps": verdict.num_steps,
        "counted_by": verdict.counted_by, "seconds": verdict.seconds,
        "step_seconds": median(verdict.step_seconds) if verdict.step_seconds else None,
        "largest": verdict.largest, "events": verdict.num_events, "kernels_without_launch": verdict.num_unknown,
        "damage": verdict.damage,
    }  # fmt: skip


def _of_one(verdict: TraceVerdict) -> list[str]:
    lines = rows_of("trace", [_about(verdict)])
    if verdict.damage:
        rest = f"this is of the {verdict.num_events:,} events that can be read"
        lines += rows_of("", [f"the file {verdict.damage}: {rest}"])
    lines += rows_of("bound by", [f"{verdict.bound}: {verdict.shares[verdict.bound]:.1%} of the time"])
    shown = [kind for kind in sorted(KINDS, key=verdict.shares.__getitem__, reverse=True) if _is_shown(verdict, kind)]
    lines += rows_of("time" if verdict.counted_by == WHOLE else "a step", [_row(verdict, kind) for kind in shown])
    if verdict.hidden_communication >= LEAST_SHOWN:
        share = f"{verdict.hidden_communication:.1%} of the time"
        lines += rows_of("hidden", [f"communication goes on beside other work in {share}"])
    if verdict.num_unknown:
        unknown = f"{verdict.num_unknown:,} kernels do not say what launched them; only their names count"
        lines += rows_of("unknown", [unknown])
    return lines


def _row(verdict: TraceVerdict, kind: str) -> str:
    share, name = verdict.shares[kind], verdict.largest.get(kind, "")
    mostly = f"   mostly {_short(name)}" if name else ""
    return f"{kind:<16}{step_time(share * verdict.seconds_per_step):>10}{share:>8.1%}{mostly}"


def _is_shown(verdict: TraceVerdict, kind: str) -> bool:
    return verdict.shares[kind] >= LEAST_SHOWN


def _about(verdict: TraceVerdict) -> str:
    words = [os.path.basename(verdict.path)]
    if verdict.rank >= 0:
        words.append(f"rank {verdict.rank}" + (f" of {verdict.world_size}" if verdict.world_size > 1 else ""))
    device = DEVICES[verdict.device]
    words.append(device if verdict.num_devices < 2 else f"{device}, {verdict.num_devices} devices together")
    if verdict.counted_by == WHOLE:
        words.append(f"no steps are marked: the whole trace of {step_time(verdict.seconds)}")
    else:
        steps = counted(verdict.num_steps, "step")
        by = " of an optimizer" if verdict.counted_by == BY_OPTIMIZER else ""
        words.append(f"{steps}{by} of {step_time(median(verdict.step_seconds))}")
    return " · ".join(words)


def _name(verdict: TraceVerdict) -> str:
    return f"rank {verdict.rank}" if verdict.rank >= 0 else os.path.basename(verdict.path)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


LEAST_SHARE = 0.1  # the least part of a step for which others wait: less is noise of the measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedRank:
    """The rank for which others wait."""

    verdict: TraceVerdict
    own_share: float
    """The share of its time in communication."""
    share: float
    """The same of the others, at the median."""
    kind: str
    """What takes this rank longer than the others."""
    more_seconds: float
    """How much longer, in seconds a step."""


def who_is_waited_for(verdicts: Sequence[TraceVerdict]) -> AwaitedRank | None:
    """Return the rank that makes others wait: in collectives it waits least, because it comes last.

    None: there is one trace, or all ranks wait about equally.
    """
    if len(verdicts) < 2:
        return None
    last = min(verdicts, key=lambda one: _per_step(one, COMMUNICATION))
    others = [one for one in verdicts if one is not last]
    waited = median(_per_step(one, COMMUNICATION) for one in others)
    step = median(one.seconds_per_step for one in verdicts)
    if waited - _per_step(last, COMMUNICATION) < LEAST_SHARE * step:
        return None
    more = {
        kind: _per_step(last, kind) - median(_per_step(one, kind) for one in others)
        for kind in KINDS
        if kind != COMMUNICATION
    }
    kind = max(more, key=more.__getitem__)
    return AwaitedRank(
        verdict=last,
        own_share=last.shares[COMMUNICATION],
        share=median(one.shares[COMMUNICATION] for one in others),
        kind=kind,
        more_seconds=more[kind],
    )


def _per_step(verdict: TraceVerdict, kind: str) -> float:
    return verdict.shares[kind] * verdict.seconds_per_step
