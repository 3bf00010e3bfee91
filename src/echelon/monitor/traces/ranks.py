"""Which rank makes the others wait, from the verdicts of several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from echelon.monitor.traces.verdict import COMMUNICATION, KINDS, Verdict

LEAST_SHARE = 0.1
"""The least part of a step for which others wait: less is noise of the measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The rank for which others wait."""

    verdict: Verdict
    own_share: float
    """The share of its time in communication."""
    share: float
    """The same of the others, at the median."""
    kind: str
    """What takes this rank longer than the others."""
    more_seconds: float
    """How much longer, in seconds a step."""


def who_is_waited_for(verdicts: Sequence[Verdict]) -> Waiting | None:
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
    return Waiting(
        verdict=last,
        own_share=last.shares[COMMUNICATION],
        share=median(one.shares[COMMUNICATION] for one in others),
        kind=kind,
        more_seconds=more[kind],
    )


def _per_step(verdict: Verdict, kind: str) -> float:
    return verdict.shares[kind] * verdict.seconds_per_step
