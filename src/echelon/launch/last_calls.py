"""Say from the last collectives of all ranks which rank left which: the first call that differs, or who is behind."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from echelon.node.call_page import FAILED, RETURNED
from echelon.units import counted

MOST_NAMED, MOST_CLAUSES = 8, 6
_SAME_SIZE = frozenset({"all_reduce", "reduce", "broadcast"})
"""Collectives in which all ranks give one tensor, of the same size and dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedCall:
    """A collective that a rank has begun, or a pass backward that begins some."""

    number: int
    """Among the calls of its group; 0: unknown."""
    state: int
    kind: str
    group: str
    """Its name; empty: the default group."""
    place: str
    tensor: str
    """float32 [128, 10], perhaps with the other rank: float32 [128, 10] from rank 0"""

    @property
    def is_open(self) -> bool:
        """Say whether the rank has not come back."""
        return self.state != RETURNED

    @property
    def signature(self) -> tuple[object, ...]:
        """Calls of one number fail if their signatures differ."""
        if self.kind not in _SAME_SIZE or not self.tensor:
            return (self.kind,)
        dtype, _, shape = self.tensor.partition(" ")
        return self.kind, dtype, math.prod(map(int, re.findall(r"\d+", shape.partition("]")[0])))

    def __str__(self) -> str:
        number = f" no. {self.number}" if self.number else ""
        group = f" in group {self.group}" if self.group else ""
        tensor = f" of {self.tensor}" if self.tensor else ""
        return f"{self.kind}{number}{tensor}{group}{_at(self.place)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderLoop:
    """A loop over a loader."""

    place: str
    turn: int
    """How many loops of this line there were."""
    num_batches: int
    has_ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCalls:
    """What is known of one rank."""

    rank: int
    calls: tuple[NotedCall, ...]
    """In their order; none follows one that failed."""
    loops: tuple[LoaderLoop, ...]
    position: str
    has_ended: bool
    note: str
    crash: str = ""
    """The script's line in which a fatal signal has ended the rank."""

    def numbered(self, group: str) -> dict[int, NotedCall]:
        """Return the calls in a group by their numbers."""
        return {call.number: call for call in self.calls if call.number and call.group == group}


def read(
    called: Mapping[int, Mapping[str, Any]], positions: Mapping[int, str], ended_well: Mapping[int, float]
) -> list[RankCalls]:
    return [
        RankCalls(
            rank=rank,
            calls=_before_failure([_call(row) for row in page.get("calls", ())]),
            loops=tuple(
                LoaderLoop(place=_place(file, line), turn=turn, num_batches=batches, has_ended=bool(ended))
                for _, batches, line, ended, turn, file in page.get("loops", ())
            ),
            position=positions.get(rank, ""),
            has_ended=rank in ended_well,
            note=str(page.get("note", "")),
            crash=str(page.get("crash", "")),
        )
        for rank, page in sorted(called.items())
    ]


def _call(row: Sequence[Any]) -> NotedCall:
    _, number, state, line, kind, group, file, tensor = row
    return NotedCall(number=number, state=state, kind=kind, group=group, place=_place(file, line), tensor=tensor)


def _place(file: str, line: int) -> str:
    """Return the script's line; empty if it has none, as in python -c."""
    return f"{file}:{line}" if file else ""


def _at(place: str) -> str:
    return f" at {place}" if place else ""


def _before_failure(calls: list[NotedCall]) -> tuple[NotedCall, ...]:
    """Leave out what a rank called after the call in which it failed, while it ended."""
    for place, call in enumerate(calls):
        if call.state == FAILED and all(later.is_open for later in calls[place:]):
            return tuple(calls[: place + 1])
    return tuple(calls)


def compare(ranks: Sequence[RankCalls]) -> str:
    """Return a sentence about the first call that differs between ranks, or about those that others wait for."""
    is_apart = any(rank.calls and rank.calls[-1].is_open for rank in ranks)
    for group in sorted({call.group for rank in ranks for call in rank.calls if call.number}):
        numbered = [rank.numbered(group) for rank in ranks]
        number = _first_difference(numbered)
        if number:
            return f"call no. {number} differs between ranks: {_told(ranks, group, number)}{_of_loops(ranks)}"
        is_apart = is_apart or len({max(calls) for calls in numbered if calls}) > 1
    return _told(ranks, "", 0) + _of_loops(ranks) if is_apart else ""


def _first_difference(numbered: Sequence[Mapping[int, NotedCall]]) -> int:
    for number in sorted({number for calls in numbered for number in calls}):
        if len({calls[number].signature for calls in numbered if number in calls}) > 1:
            return number
    return 0


def _told(ranks: Sequence[RankCalls], group: str, number: int) -> str:
    """Return a clause for each place in which ranks are, the place with the fewest ranks first."""
    by_words: dict[str, list[int]] = {}
    for rank in ranks:
        words = _words(rank, rank.numbered(group).get(number))
        if words:
            by_words.setdefault(words, []).append(rank.rank)
    clauses = sorted(by_words.items(), key=lambda item: (len(item[1]), item[1][0]))
    told = [f"{_names(members)} {_agreed(words, len(members))}" for words, members in clauses]
    more = [counted(len(told) - MOST_CLAUSES, "more place")] if len(told) > MOST_CLAUSES else []
    return "; ".join(told[:MOST_CLAUSES] + more)


def _words(rank: RankCalls, call: NotedCall | None) -> str:
    last = rank.calls[-1] if rank.calls else None
    call = call or (last if last is not None and last.is_open else None)
    if call is not None:
        return f"{'is in' if call.is_open else 'has called'} {call}{_batch(rank)}"
    before = f"after {last}" if last is not None else ""
    if rank.has_ended:
        return f"has ended {before}".rstrip()
    if rank.position:
        return f"{rank.position}, {before}".rstrip(", ")
    return f"was last seen {before}" if before else ""


def _batch(rank: RankCalls) -> str:
    """Return the batch in which a rank is, if it is in a loop over a loader."""
    newest = rank.loops[-1] if rank.loops else None
    return f", in batch {newest.num_batches}" if newest is not None and not newest.has_ended else ""


def _of_loops(ranks: Sequence[RankCalls]) -> str:
    """Say which loop over a loader has ended on some ranks after fewer batches than others had."""
    by_rank = {rank.rank: {(loop.place, loop.turn): loop for loop in rank.loops} for rank in ranks}
    for key in dict.fromkeys(key for loops in by_rank.values() for key in loops):
        loops = {rank: loops[key] for rank, loops in by_rank.items() if key in loops}
        fewest = min((loop.num_batches for loop in loops.values() if loop.has_ended), default=math.inf)
        if any(loop.num_batches > fewest for loop in loops.values()):
            numbers: dict[str, list[int]] = {}
            for rank, loop in loops.items():
                so_far = "" if loop.has_ended else " so far"
                numbers.setdefault(f"{loop.num_batches}{so_far}", []).append(rank)
            told = ", ".join(f"{_names(members)} had {number}" for number, members in numbers.items())
            return f"; batches of the loop{_at(key[0])}: {told}"
    return ""


def of_one(ranks: Sequence[RankCalls], number: int) -> str:
    """Return where one rank has crashed, and its last collective."""
    rank = _of(ranks, number)
    if rank is None:
        return ""
    told = [f"it was at {rank.crash}"] if rank.crash else []
    told += [
        f"{'it was in' if last.is_open else 'its last collective was'} {last}{_batch(rank)}" for last in rank.calls[-1:]
    ]
    return "; ".join(told)


def note_of(ranks: Sequence[RankCalls], number: int) -> str:
    """Return what the error of a rank does not tell."""
    rank = _of(ranks, number)
    return rank.note if rank is not None else ""


def _of(ranks: Sequence[RankCalls], number: int) -> RankCalls | None:
    return next((rank for rank in ranks if rank.rank == number), None)


def unused(ranks: Sequence[RankCalls]) -> str:
    """Return the names of the parameters that got no gradient."""
    told = [f"{rank.note} on rank {rank.rank}" for rank in ranks if rank.note]
    return f"without a gradient: {'; '.join(told[:MOST_NAMED])}" if told else ""


def _agreed(words: str, count: int) -> str:
    if count == 1:
        return words
    for one, several in (("is ", "are "), ("has ", "have "), ("waits ", "wait "), ("was ", "were ")):
        if words.startswith(one):
            return several + words.removeprefix(one)
    return words


def _names(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1)) and len(ranks) > 2:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    more = f" and {len(ranks) - MOST_NAMED} more" if len(ranks) > MOST_NAMED else ""
    named = [str(rank) for rank in ranks[:MOST_NAMED]]
    return f"ranks {', '.join(named)}{more}" if more else f"ranks {', '.join(named[:-1])} and {named[-1]}"
