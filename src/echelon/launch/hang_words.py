"""Name in words which ranks hang: group the ranks that stand at the same place, and find the odd ones."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from echelon.node import frames
from echelon.node.processes import STATES

MOST_NAMED = 4
_FROZEN = frozenset("TtDZ")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPosition:
    """Where one rank stands."""

    rank: int
    node: str
    local_rank: int
    steps: int
    idle_seconds: float
    """The seconds in which the rank itself has not used a core."""
    state: str
    """The letter of the kernel: R, S, D, T …"""
    why: str
    """The reason why there is no stack; empty if there is one."""
    call: str
    """The call in which the rank waits, beyond the script's line."""
    place: str
    """The script's line: train.py:41."""
    text: str
    """The code of that line."""
    is_shared: bool
    """Whether the rank waits for other ranks."""
    child: str
    """A sentence about a child of the rank that is frozen or stands at a line of the script."""
    collective: str
    """The collective of PyTorch's flight recorder that has not ended; empty without a dump."""
    stack: tuple[frames.Frame, ...]
    threads: tuple[tuple[frames.Frame, ...], ...]
    """The stacks of all threads."""
    wchan: str = ""
    sleeps: bool = False
    """Whether the main thread sleeps for a time that the script has chosen."""

    @property
    def is_frozen(self) -> bool:
        """Say whether the process cannot go on by itself."""
        return self.state in _FROZEN

    @property
    def key(self) -> tuple[object, ...]:
        """Ranks with equal keys belong to one group."""
        state = self.state if self.is_frozen else ""
        return state, self.why, self.call, self.place, self.child, self.collective


@dataclass(frozen=True, slots=True, kw_only=True)
class HangVerdict:
    """What to say about a hang."""

    words: str
    odd: tuple[RankPosition, ...]
    """The ranks that keep the others waiting; empty if all stand alike."""
    groups: tuple[tuple[RankPosition, ...], ...]


def read(record: Mapping[str, Any], node: str, local_rank: int) -> RankPosition:
    """Return a rank's stand from its agent's record."""
    threads = tuple(tuple(frames.Frame(*frame) for frame in stack) for _, stack in record["threads"])
    stack = threads[0] if threads else ()
    position = frames.own(list(stack))
    return RankPosition(
        rank=int(record["rank"]),
        node=node,
        local_rank=local_rank,
        steps=int(record["steps"]),
        idle_seconds=float(record["idle_seconds"]),
        state=str(record["state"]),
        why=str(record["why"]),
        call=frames.waits_in(list(stack)),
        place=_place(stack[position]) if position is not None else "",
        text=str(record["text"]),
        is_shared=frames.is_collective(list(stack)),
        child=next((text for child in record["children"] if (text := _child(child))), ""),
        collective=str(record["collective"]),
        stack=stack,
        threads=threads,
        wchan=str(record["wchan"]),
        sleeps="nanosleep" in str(record["wchan"]) or str(record["syscall"]).partition(" ")[0] in ("35", "230"),
    )


def _place(frame: frames.Frame) -> str:
    return f"{os.path.basename(frame.file)}:{frame.line}"


def _child(record: Mapping[str, Any]) -> str:
    """Return a sentence about a child process, if the child explains why its rank waits."""
    name = f"its child {record['name']}, process {record['pid']},"
    if record["state"] in _FROZEN:
        return f"{name} is {STATES[record['state']]}"
    stack = [frames.Frame(*frame) for frame in record["threads"][0][1]] if record["threads"] else []
    position = frames.own(stack)
    if position is None or not any("torch/utils/data/_utils" in frame.file for frame in stack[position:]):
        return ""
    return f"{name} is at {_place(stack[position])}" + (f" ({record['text']})" if record["text"] else "")


def judge(stands: Sequence[RankPosition]) -> HangVerdict:
    """Find the ranks for which the others wait, and describe all groups."""
    by_key: dict[tuple[object, ...], list[RankPosition]] = {}
    for stand in sorted(stands, key=lambda each: each.rank):
        by_key.setdefault((*stand.key, stand.steps), []).append(stand)
    groups = sorted(by_key.values(), key=lambda group: (-len(group), group[0].rank))
    odd = _odd(groups) if len(groups) > 1 or len(stands) == 1 else groups[0] if groups and _is_odd(groups[0][0]) else []
    first = [group for group in groups if group[0] in odd]
    rest = [group for group in groups if group[0] not in odd]
    words = "; ".join(_words(group, num_ranks=len(stands)) for group in (*first, *rest))
    return HangVerdict(words=words, odd=tuple(odd), groups=tuple(tuple(group) for group in (*first, *rest)))


def _is_odd(stand: RankPosition) -> bool:
    return stand.is_frozen or bool(stand.child)


def _odd(groups: Sequence[Sequence[RankPosition]]) -> list[RankPosition]:
    """Return the odd ranks: the frozen ones, else the ones that do not wait for others, else the smaller groups."""
    everyone = [stand for group in groups for stand in group]
    for is_odd in (
        lambda stand: stand.is_frozen,
        lambda stand: bool(stand.child),
        lambda stand: stand.why != "",
        lambda stand: not stand.is_shared,
    ):
        odd = [stand for stand in everyone if is_odd(stand)]
        if odd and (len(odd) < len(everyone) or len(groups) == 1):
            return odd
    if len(groups) == 1:
        return everyone
    largest = len(groups[0])
    if len(groups[1]) < largest:
        return [stand for group in groups[1:] for stand in group]
    return _ahead(everyone)


def _ahead(stands: Sequence[RankPosition]) -> list[RankPosition]:
    """Of groups that are equally large, return the ranks that are ahead: they have left something out."""
    steps = max(stand.steps for stand in stands)
    if any(stand.steps != steps for stand in stands):
        return [stand for stand in stands if stand.steps == steps]
    places = Counter(stand.place for stand in stands)
    last = max(places, key=lambda place: (place.rpartition(":")[0], int(place.rpartition(":")[2] or 0)))
    return [stand for stand in stands if stand.place == last]


def _words(group: Sequence[RankPosition], *, num_ranks: int) -> str:
    stand, count = group[0], len(group)
    if count <= MOST_NAMED and (count < num_ranks or count == 1) and (count == 1 or _is_odd(stand)):
        names = [f"rank {each.rank} on {each.node}" for each in group]
        who = names[0] if count == 1 else ", ".join(names[:-1]) + f" and {names[-1]}"
    else:
        who = f"all {count} ranks" if count == num_ranks else f"{count} ranks"
    verb = ("waits", "is") if count == 1 else ("wait", "are")
    if stand.is_frozen:
        at = f" in {stand.wchan}" if stand.wchan and stand.state == "D" else ""
        return f"{who} {verb[1]} {STATES[stand.state]}{at}"
    return f"{who} {_stands(stand, verb)}" + (f"; {stand.child}" if stand.child else "")


def position(stand: RankPosition) -> str:
    """Return a clause about a rank: "is at train.py:41 (tokenize())"; empty if nothing tells it."""
    if stand.is_frozen:
        return f"is {STATES[stand.state]}"
    return _stands(stand, ("waits", "is")) if stand.place else ""


def _stands(stand: RankPosition, verb: tuple[str, str]) -> str:
    at = f", {stand.place}" if stand.place else ""
    if stand.call:
        of_step = f" of step {stand.steps + 1}" if stand.is_shared and stand.steps else ""
        recorded = f" (flight recorder: {stand.collective})" if stand.collective else ""
        return f"{verb[0]} in {stand.call}{of_step}{at}{recorded}"
    if stand.place:
        return f"{verb[1]} at {stand.place}" + (f" ({stand.text})" if stand.text else "")
    kernel = f" in the kernel's {stand.wchan}" if stand.wchan else ""
    return f"{verb[0]}{kernel} at an unknown line" + (f": {stand.why}" if stand.why else "")


def last_words(stand: RankPosition) -> str:
    """Return a stack as Python shows it, with the script's frames alone."""
    own = [frame for frame in stand.stack if frames.own([frame]) is not None and not frames.is_library(frame)]
    if not own:
        return ""
    lines = ["Traceback (most recent call last):"]
    lines += [f'  File "{frame.file}", line {frame.line}, in {frame.function}' for frame in reversed(own)]
    if stand.text:
        lines.append(f"    {stand.text}")
    if stand.call:
        lines.append(f"waits in {stand.call}")
    return "\n".join(lines)


def full(verdict: HangVerdict) -> str:
    """Return the stacks of all ranks for a file: each group once."""
    parts = [verdict.words, ""]
    for group in verdict.groups:
        ranks = ", ".join(str(stand.rank) for stand in group)
        stand = group[0]
        parts.append(f"ranks {ranks}: {_words(group, num_ranks=0)} [state {stand.state}, {stand.wchan or 'no wchan'}]")
        for number, stack in enumerate(stand.threads):
            parts.append(f"  thread {number}, most recent call first:")
            parts += [f'    File "{frame.file}", line {frame.line}, in {frame.function}' for frame in stack]
        parts.append("")
    return "\n".join(parts)
