"""Detect ranks that wait for each other at different places: each call is valid by itself, but none of them ends.

A thread of each rank checks regularly whether the script stands still in a call that other ranks must make too. A
rank that has stood still for half a minute asks all ranks for their places. If all ranks stand in such calls at several
lines of the script, they wait for ever, and the run ends. If a rank is elsewhere, it may come yet. One line says which
rank waits for which, and where both are.
"""

import atexit
import json
import os
import sys
import threading
import time
from types import FrameType
from typing import NamedTuple

import torch.distributed as dist

from ...pytorch import distributed
from ..scaling_error import ScalingError, end_refused, tell_at
from . import lines, oracle

LOOK_SECONDS = 5.0
STILL_SECONDS = 30.0
"""How long a rank stands still in a call before it asks for the places of the others."""
FIRST_NOTE_SECONDS = 60.0
ANSWER_SECONDS = 20.0
END_SECONDS = 5.0
"""How long the end of a rank waits for the thread: the store answers at once, or not at all."""
_ASKED = "asked"


class WaitingPlace(NamedTuple):
    seconds: float
    """The seconds that the rank has stood there."""
    place: str
    """The line of the script."""
    is_waiting: bool
    """Whether the rank is in a call that all ranks must make."""
    call: str
    """The line of code that waits, and the number of collectives that were begun."""


class Waits:
    def __init__(self, rank: int, num_ranks: int, store: object) -> None:
        self._rank = rank
        self._num_ranks = num_ranks
        self._store = distributed.PrefixStore("echelon waiting", store)
        self._thread_id = threading.get_ident()
        self._mark: object = None
        self._since = time.monotonic()
        self._next_note = FIRST_NOTE_SECONDS
        self._round = 0
        self._earlier: dict[int, tuple[str, str]] = {}
        self._end = threading.Event()

    def begin(self) -> None:
        thread = threading.Thread(target=self._run, name="echelon waiting", daemon=True)
        thread.start()
        atexit.register(self._leave, thread)

    def _leave(self, thread: threading.Thread) -> None:
        """End the thread before Python does: a thread that Python ends in a call of the store aborts the process."""
        self._end.set()
        thread.join(END_SECONDS)

    def _run(self) -> None:
        pid = os.getpid()
        while not self._end.wait(LOOK_SECONDS) and os.getpid() == pid:
            stand = self._look()
            if stand is None or not dist.is_initialized():
                return
            try:
                self._speak(stand)
            except RuntimeError:
                return  # the store is gone: the run ends

    def _look(self) -> WaitingPlace | None:
        frame = _of_others(sys._current_frames().get(self._thread_id))
        if frame is None:
            return None
        mark = (id(frame.f_code), frame.f_lasti, _num_collectives())
        if mark != self._mark:
            self._mark, self._since = mark, time.monotonic()
        code = frame.f_code
        call = f"{os.path.basename(code.co_filename)}:{frame.f_lineno}, collective {mark[2]}"
        return WaitingPlace(time.monotonic() - self._since, str(lines.of_frame(frame)), _is_shared(frame), call)

    def _speak(self, stand: WaitingPlace) -> None:
        """Ask the others if this rank has waited too long; answer the ranks that ask. Rank 0 prints the result."""
        asked = int(self._store.compare_set(_ASKED, "", "") or 0)  # reads: `get` would wait for a key just deleted
        if not asked and stand.is_waiting and stand.seconds >= STILL_SECONDS:
            asked = int(self._store.compare_set(_ASKED, "", str(self._store.add("rounds", 1))))
        if not asked:
            self._next_note = FIRST_NOTE_SECONDS
            return
        if asked <= self._round:
            return
        self._round = asked
        self._store.set(f"{asked}/{self._rank}", json.dumps(stand))
        if self._rank == 0:
            stands = self._answers(asked)
            self._store.set(_ASKED, "")
            self._judge(stands)

    def _answers(self, number: int) -> dict[int, WaitingPlace]:
        """Return the places of the ranks that answer."""
        deadline = time.monotonic() + ANSWER_SECONDS
        stands: dict[int, WaitingPlace] = {}
        while len(stands) < self._num_ranks and time.monotonic() < deadline and not self._end.is_set():
            for rank in set(range(self._num_ranks)) - set(stands):
                key = f"{number}/{rank}"
                if self._store.check([key]):
                    stands[rank] = WaitingPlace(*json.loads(self._store.get(key)))
                    self._store.delete_key(key)
            self._end.wait(0.1)
        return stands

    def _judge(self, stands: dict[int, WaitingPlace]) -> None:
        """Refuse if all ranks wait where they waited in the last round; else print which rank waits for which."""
        waiting = {rank: one for rank, one in stands.items() if one.is_waiting and one.seconds >= STILL_SECONDS / 2}
        places = {rank: (one.place, one.call) for rank, one in waiting.items()}
        earlier, self._earlier = self._earlier, places
        if len(places) == self._num_ranks and len(set(places.values())) > 1:
            if places == earlier:
                self._refuse({rank: one.place for rank, one in waiting.items()})
            return
        longest = max((one.seconds for one in waiting.values()), default=0.0)
        absent_ranks = set(range(self._num_ranks)) - set(places)
        away = {rank: stands[rank].place if rank in stands else "" for rank in absent_ranks}
        if places and away and longest >= self._next_note:
            self._next_note = 2 * longest
            lines_of_waiting = {rank: one.place for rank, one in waiting.items()}
            sys.stderr.write(f"echelon: note: {_note(lines_of_waiting, away, longest)}\n")
            sys.stderr.flush()

    def _refuse(self, places: dict[int, str]) -> None:
        by_place: dict[str, list[int]] = {}
        for rank, place in sorted(places.items()):
            by_place.setdefault(place, []).append(rank)
        told = "; ".join(f"{_ranks(ranks)} at {place}" for place, ranks in by_place.items())
        reason = f"at different lines, so none can continue: {told}"
        repair = "let all ranks take the same decisions: do not decide by a rank's own clock, environment or files"
        if len(by_place) == 1:
            reason = f"in different exchanges at {places[0]}, so none can continue"
            repair = "let no number, shape or branch in this line depend on the samples of a rank"
        tell_at(
            ScalingError("the ranks wait for each other " + reason, repair + "; or start one rank: echelon run -n 1 …")
        )
        end_refused()


def begin(rank: int, num_ranks: int, store: object) -> None:
    Waits(rank, num_ranks, store).begin()


def _of_others(frame: FrameType | None) -> FrameType | None:
    """Return the innermost call that does not only take the time of another one."""
    while frame is not None and ".measuring." in str(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return frame


def _num_collectives() -> int:
    """Return how many collectives this rank has begun."""
    total = 0
    for group in distributed.groups():
        try:
            total += distributed.num_collectives(group)
        except RuntimeError:
            continue  # a backend that does not count
    return total


def _is_shared(frame: FrameType | None) -> bool:
    """Say whether a frame is in a call that all ranks must make: echelon, torch.distributed, or a backward pass."""
    name = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    if name == oracle.__name__:  # rank 0 waits for the oracle, and continues
        return False
    return name.partition(".")[0] in ("echelon", "_echelon") or name.startswith(("torch.distributed", "torch.autograd"))


def _note(places: dict[int, str], away: dict[int, str], seconds: float) -> str:
    waiting, place = min(places.items())
    rank, elsewhere = min(away.items())
    more = f" (and {len(away) - 1} more)" if len(away) > 1 else ""
    where = f"which is at {elsewhere}" if elsewhere else "which does not answer"
    return f"rank {waiting} has waited for {seconds:.0f} s at {place} for rank {rank}{more}, {where}"


def _ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    first: tuple[int, ...] = tuple(ranks[:8])
    return "ranks {}{}".format(", ".join(map(str, first)), " …" if len(ranks) > 8 else "")
