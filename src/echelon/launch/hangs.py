"""Notice a hang, and ranks that still run long after others ended; name the ranks for which the others wait."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from echelon.host import terminal
from echelon.launch import failure, hang_words
from echelon.launch.attempt import Attempt
from echelon.launch.crew import AgentConnection, AgentConnections, words
from echelon.launch.failure import NEVER, Failure
from echelon.launch.hang_words import RankPosition
from echelon.launch.run_directory import RunDirectory
from echelon.node.channel import Message
from echelon.node.hang_watch import AT_END, AUTO, OFF
from echelon.spec import Plan

EXIT_CODE = 75  # sysexits.h: EX_TEMPFAIL, the same command may succeed later
LEAST_SECONDS = 120.0  # auto: however short the steps are
UNTRAINED_SECONDS = 1800.0  # auto: before the first step, and for ranks that sleep for a time of their own choice
NUM_LONGEST = 10.0  # auto: so many times the longest step so far
LOOK_SECONDS = 0.1  # a thousand agents make a thousand turns of the loop each second
PAUSE_SECONDS = 5.0  # a turn of the supervisor's loop takes at most one second; a longer one was a pause
ANSWER_SECONDS = 15.0
NUM_EQUAL_LOOKS = 3  # ranks that use a core hang if so many looks in a row find the same stacks
IDLE_SHARE = 0.4  # of the limit: ranks that have done nothing for so long are idle
MOST_LIMITS = 5.0  # so many times the limit is the patience with ranks that use a core and do not wait for others


@dataclass(frozen=True, slots=True)
class _Pulse:
    heard_at: float
    message: Message


class Hangs:
    """The pulses of all nodes, and what to conclude from them."""

    def __init__(
        self,
        plan: Plan,
        directory: RunDirectory,
        crew: AgentConnections,
        fail: Callable[[Failure], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._timeout = timeout_of(plan)
        self._directory, self._crew, self._fail = directory, crew, fail
        self._round = 0
        self._attempt = -1
        self._last = clock()
        self._at_end: dict[tuple[int, int], RankPosition] = {}
        """The positions of ranks when their attempt was stopped."""
        self._begin(-1, self._last)

    def _begin(self, attempt: int, now: float) -> None:
        self._attempt = attempt
        self._since = now
        """No silence before this moment counts: then the attempt began, or the supervisor itself was paused."""
        self._pulses: dict[int, _Pulse] = {}
        self._answers: dict[int, list[RankPosition]] = {}
        self._deadline = NEVER  # of the answers
        self._ask_at = 0.0
        self._seen: tuple[object, ...] = ()
        self._num_equal = 0

    def hear(self, member: AgentConnection, message: Message) -> None:
        """Record an agent's pulse, or the stands of its ranks."""
        index = member.placement.agent_index
        if message["kind"] == "pulse":
            self._pulses[index] = _Pulse(self._clock(), message)
        elif message["round"] == AT_END:
            stands = [self._stand(member, record) for record in message["ranks"]]
            self._at_end.update(((message["attempt"], stand.rank), stand) for stand in stands)
        elif message["round"] == self._round and self._deadline != NEVER:
            self._answers[index] = [self._stand(member, record) for record in message["ranks"]]

    def at_end(self, attempt: int) -> dict[int, str]:
        """Return where ranks were when an attempt was stopped, of those that were asked."""
        return {rank: hang_words.position(stand) for (number, rank), stand in self._at_end.items() if number == attempt}

    def _stand(self, member: AgentConnection, record: dict[str, Any]) -> RankPosition:
        first = member.share.first_rank if member.share is not None else 0
        local_rank = member.placement.first_local_rank + int(record["rank"]) - first
        return hang_words.read(record, member.placement.node, local_rank)

    def look(self, attempt: Attempt) -> None:
        """Look at each turn of the supervisor's loop; a hang becomes a failure of the attempt."""
        if self._timeout == OFF:
            return
        now = self._clock()
        if now - self._last < LOOK_SECONDS and attempt.number == self._attempt:
            return
        was_paused, self._last = now - self._last > PAUSE_SECONDS, now
        if attempt.number != self._attempt:
            self._begin(attempt.number, now)
        elif was_paused:
            self._since = now
            self._deadline, self._num_equal = NEVER, 0
            self._pulses = {index: _Pulse(now, pulse.message) for index, pulse in self._pulses.items()}
        members = [member for member in self._crew if member.share is not None and not member.is_stopped]
        if not attempt.is_running or attempt.stopped_at != NEVER or not attempt.alive or not members:
            return
        if any(member.placement.agent_index not in self._pulses for member in members):
            return  # its imports are still running
        if not self._has_frozen_agent(members, now):
            self._look(members, now)

    def _has_frozen_agent(self, members: list[AgentConnection], now: float) -> bool:
        limit = max(float(self._timeout), 1.0) if self._timeout != AUTO else LEAST_SECONDS
        silent = [each for each in members if now - self._pulses[each.placement.agent_index].heard_at >= limit]
        for member in silent:
            seconds = now - self._pulses[member.placement.agent_index].heard_at
            detail = words(member, seconds)
            node = member.placement.node
            self._fail(Failure(cause=failure.HANG, detail=detail, exit_code=EXIT_CODE, node=node, time=time.time()))
        return bool(silent)

    def _look(self, members: list[AgentConnection], now: float) -> None:
        quiet = self._least(members, "quiet_seconds", now)
        limit = self._limit(members)
        if quiet < limit:
            self._deadline, self._num_equal = NEVER, 0
        elif self._deadline != NEVER:
            if len(self._answers) >= len(members) or now >= self._deadline:
                self._deadline = NEVER
                self._judge(members, quiet, limit, now)
        elif now >= self._ask_at:
            self._round += 1
            self._answers = {}
            self._deadline = now + ANSWER_SECONDS
            self._crew.tell_all("stacks", round=self._round)

    def _limit(self, members: list[AgentConnection]) -> float:
        if self._timeout != AUTO:
            return float(self._timeout)
        messages = [self._pulses[member.placement.agent_index].message for member in members]
        if not any(message["has_stepped"] for message in messages):
            return UNTRAINED_SECONDS
        return max(LEAST_SECONDS, NUM_LONGEST * max(float(message["longest_seconds"]) for message in messages))

    def _least(self, members: list[AgentConnection], name: str, now: float) -> float:
        """Return the shortest of a kind of silence over all nodes."""
        pulses = [self._pulses[member.placement.agent_index] for member in members]
        return min(now - self._since, *(float(each.message[name]) + now - each.heard_at for each in pulses))

    def _judge(self, members: list[AgentConnection], quiet: float, limit: float, now: float) -> None:
        """Call it a hang, or look again later: ranks that work may only need more time."""
        stands = sorted((stand for each in self._answers.values() for stand in each), key=lambda stand: stand.rank)
        if not stands:
            return
        seen = tuple((stand.rank, stand.threads, stand.is_frozen) for stand in stands)
        self._num_equal = self._num_equal + 1 if seen == self._seen else 1
        self._seen = seen
        verdict = hang_words.judge(stands)
        if self._may_go_on(members, verdict, quiet, limit):
            self._ask_at = now + max(0.5, min(limit / 4, 30.0))
        else:
            self._report(verdict, quiet)

    def _may_go_on(
        self, members: list[AgentConnection], verdict: hang_words.HangVerdict, quiet: float, limit: float
    ) -> bool:
        """Say whether silent ranks may only need more time."""
        is_late = quiet >= MOST_LIMITS * limit
        if self._timeout != AUTO and is_late:
            return False
        idle = IDLE_SHARE * min(limit, LEAST_SECONDS)
        if self._least(members, "others_idle_seconds", self._clock()) < idle:
            return True
        if self._timeout == AUTO and quiet < UNTRAINED_SECONDS and any(stand.sleeps for stand in verdict.odd):
            return True
        busy = [stand for group in verdict.groups for stand in group if stand.idle_seconds < idle]
        if not busy:
            return False
        return self._num_equal < NUM_EQUAL_LOOKS or not (is_late or all(stand.is_shared for stand in busy))

    def _report(self, verdict: hang_words.HangVerdict, quiet: float) -> None:
        odd = verdict.odd[0] if verdict.odd else None
        path = self._directory.write_text(f"hang-{self._attempt}.txt", hang_words.full(verdict))
        ranks = [stand.rank for stand in verdict.odd]
        self._directory.event("hang", attempt=self._attempt, seconds=round(quiet, 1), ranks=ranks, words=verdict.words)
        detail = f"no step and no output for {quiet:.0f} s: {verdict.words}; all stacks: {shortest(path)}"
        place = {"rank": odd.rank, "node": odd.node, "local_rank": odd.local_rank} if odd is not None else {}
        self._fail(
            Failure(
                cause=failure.HANG,
                detail=detail,
                exit_code=EXIT_CODE,
                time=time.time(),
                tail=hang_words.last_words(odd) if odd is not None else "",
                log=self._directory.file("logs", f"attempt-{self._attempt}", f"rank-{odd.rank}.log") if odd else "",
                **place,  # type: ignore[arg-type]
            )
        )


def timeout_of(plan: Plan) -> float | str:
    """Return the limit of a plan: "auto" watches no run in which a person at the keyboard may answer a rank."""
    if plan.hang_timeout == AUTO and plan.stdin_rank >= 0 and terminal.is_terminal(sys.stdin):
        return OFF
    return plan.hang_timeout


def shortest(path: str) -> str:
    """Return the shorter of the absolute and the relative path."""
    short = os.path.relpath(path)
    return path if short.startswith("..") else short


PATIENCE_SECONDS = 15.0
MAX_NAMED = 4


class LateRanks:
    """Report once per attempt the ranks that still run after the others ended."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.deadline = NEVER
        self.pids: dict[int, tuple[str, int]] = {}
        """Rank → its node and process."""

    def note_exit(self, num_alive: int) -> None:
        """Record that a rank ended well, and restart the timer."""
        self.deadline = time.monotonic() + PATIENCE_SECONDS if num_alive else NEVER

    def on_deadline(self, alive: set[int], num_ranks: int, logs: str) -> None:
        """Report the ranks that still run: the timer has expired."""
        self.deadline = NEVER
        named = [f"rank {rank}{self._place(rank)} ({logs}/rank-{rank}.log)" for rank in sorted(alive)[:MAX_NAMED]]
        more = f" and {len(alive) - MAX_NAMED} more" if len(alive) > MAX_NAMED else ""
        verb = "runs" if len(alive) == 1 else "run"
        count = f"{num_ranks - len(alive)} of {num_ranks} ranks ended {PATIENCE_SECONDS:.0f} s ago"
        self._say(f"note: {count}; still {verb}: {', '.join(named)}{more}")

    def _place(self, rank: int) -> str:
        node, pid = self.pids.get(rank, ("", 0))
        return f" on {node}, process {pid}" if pid else ""
