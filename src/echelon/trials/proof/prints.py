"""Numbers that the script prints, of its training and its evaluations, compared line by line with one device."""

import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from echelon.trials.proof.evidence import FirstDifference, Recordings, Row, relative

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WHOLE = re.compile(r"[-+]?\d+")
_OF_TIME = re.compile(
    r"time|elapsed|took|second|\bsec|/s\b|speed|throughput|\beta\b|memory|[mg]i?b\b|\bm?s\b|rank|pid", re.I
)
_PRINTED = 2e-3  # relative: printed numbers are rounded
_STEADY = 0.01  # relative: what two runs on one device print so far apart is no number of the training
_OF_PART = 0.2  # relative: so near is the number of a rank's part, divided by the size of the whole
Place = tuple[str, int]
"""The text around a number from that number on, and which number of its line it is."""


class Printed(NamedTuple):
    """A number that the script printed."""

    step: int
    number: float
    meetings: int
    """How many collectives came before."""
    is_evaluated: bool
    """Whether it came after an evaluation, and before the next step."""
    is_whole: bool
    """Whether it was printed without a point, as counts are."""


class Pair(NamedTuple):
    """A number as one device prints it, and as several ranks do."""

    place: Place
    wanted: Printed
    found: Printed
    is_apart: bool

    @property
    def name(self) -> str:
        """The words before the number."""
        return self.place[0].partition("#")[0].strip(" :=,([") or "a number"

    @property
    def factor(self) -> float:
        """How many times as large it is on several ranks; 0 where one device printed 0."""
        return self.found.number / self.wanted.number if self.wanted.number else 0.0


def pairs(case: Recordings) -> list[Pair]:
    """Return the numbers that all runs printed, and that one device printed alike in both of its runs."""
    oracle, reordered, several = (_numbers(run.facts[0]) for run in (case.oracle, case.reordered, case.several))
    printed = []
    for key, wanted in oracle.items():
        if key in several and key in reordered:
            stray = relative(wanted.number, reordered[key].number)
            if stray <= _STEADY:
                gap = relative(wanted.number, several[key].number)
                printed.append(Pair(key[:2], wanted, several[key], gap > max(_PRINTED, 16 * stray)))
    return printed


def difference(case: Recordings, printed: list[Pair]) -> FirstDifference | None:
    """Return a printed number that is another one on several ranks, and not only that of a rank's own samples."""
    for pair in printed:
        if not pair.is_apart or _is_own_loss(case, pair):
            continue
        if case.is_own and not pair.wanted.is_evaluated and not _is_of_part(case, pair, printed):
            continue
        why = (
            f"{pair.name!r} is {pair.found.number:g} on several ranks, but {pair.wanted.number:g} on one device, "
            f"after step {pair.wanted.step}"
        )
        of_training = _OF_ONE_RANK if case.is_own else _OF_SCALED
        meaning = _of_evaluation(case, pair) if pair.wanted.is_evaluated else of_training
        return FirstDifference(pair.wanted.step, pair.name, pair.factor, why, meaning)
    return None


_OF_ONE_RANK = (
    "it counts the samples of one rank, but is divided by the number of all samples: divide by what the rank has "
    "counted, or add up the counts of all ranks by an all-reduce"
)
_OF_SCALED = "it is computed from other values than on one device; losses, gradients and weights are equal"


def _is_of_part(case: Recordings, pair: Pair, printed: list[Pair]) -> bool:
    """Say whether a number, wherever it is printed, is by the number of ranks too small or too large."""
    alike = [other.factor for other in printed if other.place == pair.place and not other.wanted.is_whole]
    part = 1 / case.num_ranks
    return bool(alike) and any(
        all(abs(factor / wanted - 1) <= _OF_PART for factor in alike) for wanted in (part, case.num_ranks)
    )


def _is_own_loss(case: Recordings, pair: Pair) -> bool:
    """Say whether a number is the loss of the last steps, here that of rank 0: each rank may print its own."""
    own = [row["ranks"][0] for row in case.several.rows]
    of_one, of_rank = (_losses(rows[: pair.wanted.step]) for rows in (case.oracle.rows, own))
    return any(
        relative(pair.wanted.number, wanted) <= _PRINTED and relative(pair.found.number, found) <= _PRINTED
        for wanted, found in zip(of_one, of_rank, strict=False)
    )


def _losses(rows: list[Row]) -> list[float]:
    """Return the sums and the means of the last losses, one more each time."""
    sums = list(itertools.accumulate(float(row["loss"] or 0.0) for row in rows[::-1]))
    return [value for count, total in enumerate(sums, 1) for value in (total, total / count)]


def _numbers(facts: dict[str, Any]) -> dict[tuple[str, int, int], Printed]:
    """Return the printed numbers by the text around them, their place in it, and how often it was printed before."""
    numbers: dict[tuple[str, int, int], Printed] = {}
    counts: dict[str, int] = {}
    for step, meetings, text, is_evaluated in facts.get("said", []):
        around = _NUMBER.sub("#", text)
        if _OF_TIME.search(around):
            continue
        counts[around] = counts.get(around, 0) + 1
        for place, word in enumerate(_NUMBER.findall(text)):
            key = "#".join(around.split("#")[place:]), place, counts[around]
            numbers[key] = Printed(step, float(word), meetings, is_evaluated, _WHOLE.fullmatch(word) is not None)
    return numbers


def _of_evaluation(case: Recordings, pair: Pair) -> str:
    step, meetings = pair.found.step, pair.found.meetings
    oracle = next(_evaluations(case.oracle.facts[0], step), None)
    by_rank = [next(_evaluations(facts, step), None) for facts in case.several.facts]
    first = by_rank[0]
    if oracle is None or first is None:
        return "it is computed from other samples than on one device"
    wanted = oracle["samples"]
    total = sum(evaluation["samples"] for evaluation in by_rank if evaluation)
    drawn = [sample for evaluation in by_rank if evaluation for sample in evaluation["drawn"]]
    if first["samples"] < wanted and meetings == first["meetings"]:
        return (
            f"it is computed from only the {first['samples']} samples of rank 0, of {wanted} samples: add up the "
            "counts of all ranks by an all-reduce before you report it"
        )
    if total > wanted and len(set(drawn)) < len(drawn):
        return (
            f"{total - wanted} of {total} samples are evaluated twice: DistributedSampler repeats some so that every "
            "rank has the same number; leave the repeated samples out of the count"
        )
    return (
        "each rank's mean has the same weight, but the means are over different numbers of samples: sum values "
        "and counts over the ranks, then divide"
    )


def _evaluations(facts: dict[str, Any], step: int) -> Iterator[Row]:
    return (evaluation for evaluation in reversed(facts.get("evaluations", [])) if evaluation["step"] == step)
