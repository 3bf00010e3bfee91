"""The supervisor, one per run: it gathers the agents, starts attempts, and decides how the run ends."""

from __future__ import annotations

import selectors
import signal
import socket
import time
from collections.abc import Callable
from functools import partial

from echelon.errors import EchelonError, UsageError
from echelon.launch import failure
from echelon.launch.attempt import Attempt, describe
from echelon.launch.binding_report import ReportedBindings
from echelon.launch.console import Console, Screen
from echelon.launch.crew import AgentConnection, AgentConnections, Heartbeat
from echelon.launch.failure import NEVER, Facts, Failure
from echelon.launch.gathering import Gathering
from echelon.launch.hangs import Hangs, LateRanks
from echelon.launch.kept import KeeperLink
from echelon.launch.order import SaveAndExit
from echelon.launch.restarts import Revival
from echelon.launch.run_directory import RunDirectory
from echelon.launch.samples import Samples
from echelon.launch.signals import FAILURE_GRACE_SECONDS, Relay, Signals, StopRequests
from echelon.node import private
from echelon.node.channel import Message
from echelon.scheduler import members
from echelon.spec import Plan

SYMPTOM_SECONDS = 0.5  # time for a rank to report its own failure after others lost it, before all ranks are stopped
ANSWER_SECONDS = 10.0  # an agent that has not ended its ranks this long after the grace period is given up


class Supervisor:
    """A loop over the agents' messages, signals and deadlines; `outcome` is set at the end of the run."""

    def __init__(
        self, plan: Plan, directory: RunDirectory, listener: socket.socket, secret: bytes,
        console: Console, kept: KeeperLink,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.directory = directory
        self.console = console
        self.selector = selectors.DefaultSelector()
        self.crew = AgentConnections(
            listener,
            secret,
            self.selector,
            on_join=self._join,
            on_message=self._hear,
            on_loss=self._lose,
            on_refusal=self._refuse,
            names=members.of(plan.where).names(plan),
        )
        self.gathering = Gathering(plan, self.crew)
        self.revival = Revival(plan, self.crew, self.gathering, directory, console.say)
        self.samples = Samples(directory)
        self.hangs = Hangs(plan, directory, self.crew, self._fail)
        self.heartbeat = Heartbeat(self.crew)
        self.signals = Signals(self.selector, self._receive_signal, kept)
        self.relay = Relay(self.crew, is_in_job=bool(plan.job_id))
        self.order = SaveAndExit(plan, self.crew, directory, console.say)
        self.attempt = Attempt(kept.num_attempts)
        self.num_ranks = 0
        self.num_prepared = 0
        self.kept, self.restarts = kept, kept.restarts
        self.restart_time = NEVER
        self.reason: Failure | None = None
        """Why the last attempt failed."""
        self.bound = ReportedBindings(plan, directory, self.gathering.num_agents, console.say)
        self.late_ranks = LateRanks(console.say)
        self.imported: set[int] = set()
        self.on_other_message: Callable[[AgentConnection, Message], None] = lambda _member, _message: None
        self.requests = StopRequests(self.crew, self.relay, console.say, stop=self._stop, end_idle=self._end_idle)
        end_unread = partial(self._receive_signal, signal.SIGPIPE)
        self.screen = Screen(console, kept.shown, on_broken_pipe=end_unread, on_failure=self._fail)
        self.timeout = kept.began + plan.timeout_seconds if plan.timeout_seconds else NEVER
        self.symptom_deadline = self.answer_deadline = NEVER
        console.gives_up = lambda: self.signals.is_waiting() or time.monotonic() >= self._next_deadline()
        self.outcome: Failure | None = None
        self.is_over = False
        self.error: EchelonError | None = None

    def run(self) -> Failure | None:
        """Serve until the end of the run; return the failure that explains it, or None after success."""
        while not self.is_over:
            num_agents = (len(self.crew.members), self.gathering.num_agents)
            self.screen.show_progress(self.plan, self.attempt, num_agents=num_agents, num_imported=len(self.imported))
            self.hangs.look(self.attempt)
            self.heartbeat.look(is_ending=self._is_ending())
            now = time.monotonic()
            wait = self._next_deadline() - now
            for key, _events in self.selector.select(max(0.0, min(wait, 1.0))):
                if key.fd in self.selector.get_map() and not self.is_over:
                    key.data()
            self._meet_deadlines()
        if self.error is not None:
            raise self.error
        return self.outcome

    def _is_ending(self) -> bool:
        return bool(self.requests.number) or any(each.cause == failure.TIME_LIMIT for each in self.attempt.failures)

    def _next_deadline(self) -> float:
        nearest = min(self.timeout, self.gathering.deadline, self.requests.deadline, self.symptom_deadline)
        return min(nearest, self.answer_deadline, self.late_ranks.deadline, self.relay.deadline, self.restart_time)

    def close(self, exit_code: int) -> None:
        """Dismiss the agents and restore the signal handlers."""
        self.crew.tell_all("end", exit_code=exit_code)
        self.crew.flush(seconds=5.0)
        self.crew.close()

    def _join(self, member: AgentConnection) -> None:
        placement = member.placement
        offer = {"cores": placement.num_cores, "devices": placement.num_devices}
        self.directory.event("agent", agent_index=placement.agent_index, node=placement.node, pid=member.pid, **offer)
        self.revival.note_join(member)
        if self.gathering.note_join():
            self._prepare()

    def _refuse(self, why: str) -> None:
        if not self.crew.is_complete:
            self._give_up(UsageError(why))
            return
        self.console.say(f"note: the supervisor rejected an agent: {why}")

    def _prepare(self) -> None:
        """Give the agents their ranks, and request free ports: one for the master, and one for each rank."""
        try:
            self.gathering.assign_ranks()
        except EchelonError as error:
            self._give_up(error)
            return
        self.revival.count_missing()
        self.directory.remove(private.SECRET)  # later agents are refused
        self.bound = ReportedBindings(self.plan, self.directory, self.gathering.num_agents, self.console.say)
        self.num_prepared = 0
        for member in self.crew.with_ranks:
            member.ports = []
            self.crew.tell(member, "ports", attempt=self.attempt.number, **self.gathering.ports_of(member))

    def _hear_ports(self, member: AgentConnection, message: Message) -> None:
        member.ports, member.store_port = list(message["ports"]), int(message["store_port"])
        self.num_prepared += 1
        if self.num_prepared == self.gathering.num_agents and not self.attempt.is_running and not self.requests.number:
            self._start()

    def _start(self) -> None:
        members, attempt = self.crew.with_ranks, self.attempt
        self.screen.begin(self.kept, self.reason, self.directory.logs(attempt.number - 1), self.plan.show)
        attempt.began, attempt.is_running = time.time(), True
        self.restarts.note_start()
        attempt.alive = {rank for member in members if member.share is not None for rank in member.share.ranks}
        self.num_ranks = len(attempt.alive)
        shown = self.num_ranks if self.plan.show is None else len(attempt.alive & self.plan.show)
        self.console.names_ranks = shown > 1
        around = describe(self.plan, members)
        self.directory.event("attempt", number=attempt.number, ranks=self.num_ranks, master=around["master_addr"])
        self.crew.tell_all(
            "world",
            restart=self.restarts.count,
            run_directory=self.directory.path,
            log_directory=self.directory.logs(attempt.number),
            **around,
        )
        for member in members:
            if member.share is not None:
                self.crew.tell(member, "start", attempt=attempt.number, **member.share.message())
        self.order.give_early()

    def _hear(self, member: AgentConnection, message: Message) -> None:
        if message.get("attempt", self.attempt.number) != self.attempt.number:
            return  # a late message of an earlier attempt
        hear = {
            "output": lambda _member, message: self.screen.show(message),
            "ports": self._hear_ports,
            "imported": self._hear_imported,
            "started": self._hear_started,
            "bound": self._hear_bound,
            "unbound": self._hear_bound,
            "exit": self._hear_exit,
            "signalled": self._hear_signalled,
            "ignored": self.requests.note_ignored,
            "catching": self.order.note_handlers,
            "lost": self._hear_lost,
            "stopped": self._hear_stopped,
            "pulse": self._hear_pulse,
            "stacks": self.hangs.hear,
        }.get(message["kind"], self.on_other_message)
        hear(member, message)

    def _hear_pulse(self, member: AgentConnection, message: Message) -> None:
        self.hangs.hear(member, message)
        self.samples.hear(member, message)

    def _hear_imported(self, member: AgentConnection, message: Message) -> None:
        self.imported.add(member.placement.agent_index)
        member.why_exec = message["why_exec"]
        if message.get("why_no_pool"):
            self.console.say(f"note: the pool of {member.placement.node} is not used: {message['why_no_pool']}")
        self.directory.event("imported", node=member.placement.node, **_without_kind(message))

    def _hear_started(self, member: AgentConnection, message: Message) -> None:
        self.attempt.num_started += 1
        self.late_ranks.pids[message["rank"]] = (member.placement.node, message["pid"])
        self.directory.event("started", node=member.placement.node, **_without_kind(message))

    def _hear_lost(self, member: AgentConnection, message: Message) -> None:
        cause = failure.LOST_AGENT if message["what"] == "agent" else failure.LOST_WARM
        why, node = message["why"], member.placement.node
        detail = f"{why} on {node}" if cause == failure.LOST_AGENT else why
        self._fail(Failure(cause=cause, detail=detail, node=node, time=time.time()))

    def _hear_bound(self, member: AgentConnection, message: Message) -> None:
        misplaced = self.bound.hear(member.placement.agent_index, member.placement.node, message)
        if misplaced is not None:
            self._fail(misplaced)

    def _hear_exit(self, member: AgentConnection, message: Message) -> None:
        message = self.samples.hear_exit(self.order.hear_exit(message))
        rank, attempt = message["rank"], self.attempt
        attempt.note_end(rank, message)
        self.directory.event("exit", node=member.placement.node, **_without_kind(message))
        if message["log_problem"]:
            self.console.say(f"warning: the log of rank {rank} is incomplete: {message['log_problem']}")
        if message["status"] != 0 and member.share is not None:
            self._fail(
                failure.of_rank(
                    message,
                    node=member.placement.node,
                    local_rank=member.placement.first_local_rank + rank - member.share.first_rank,
                    clock_offset=member.clock_offset,
                    stopped_at=attempt.stopped_at,
                    log=self.directory.file("logs", f"attempt-{attempt.number}", f"rank-{rank}.log"),
                )
            )
        elif message["status"] == 0:
            attempt.ended_well[rank] = float(message["time"]) - member.clock_offset
        self.late_ranks.note_exit(len(attempt.alive))
        if not attempt.alive:
            self._stop(FAILURE_GRACE_SECONDS * 2)

    def _hear_signalled(self, member: AgentConnection, message: Message) -> None:
        number = message["number"]
        self.directory.event("signalled", node=member.placement.node, number=number)
        if self.order.take(number, has_ranks=self.attempt.is_running):
            self.relay.note(member, number)
        else:
            self.requests.note_signalled(member, number)

    def _hear_stopped(self, member: AgentConnection, _message: Message) -> None:
        member.is_stopped = True
        if all(each.is_stopped for each in self.crew):
            self._end_attempt()
        elif self.attempt.stopped_at == NEVER:  # the agent stopped unasked, so this world is incomplete
            self._stop(FAILURE_GRACE_SECONDS)

    def _lose(self, member: AgentConnection, why: str) -> None:
        placement = member.placement
        self.directory.event("agent lost", agent_index=placement.agent_index, node=placement.node, why=why)
        if self.is_over:
            return
        self.revival.note_loss(member)
        if member.share is not None:
            self.attempt.alive -= set(member.share.ranks)
        if not member.is_stopped or self.restart_time != NEVER or self.revival.is_waiting:
            detail = member.frozen or f"the agent on {member.placement.node} is gone ({why})"
            lost = Failure(cause=failure.LOST_AGENT, detail=detail, node=member.placement.node, time=time.time())
            self._fail(lost)
        if all(each.is_stopped for each in self.crew):
            self._end_attempt()

    def lose_all(self, why: str) -> None:
        """Record that the process of all agents ended before the run did."""
        if not self.is_over:
            self._fail(Failure(cause=failure.LOST_AGENT, detail=why, time=time.time()))
            if not self.crew.members:
                self._end_attempt()

    def _fail(self, reason: Failure) -> None:
        self.attempt.failures.append(reason)
        if self.requests.number:
            return
        if reason.is_of_several and self.symptom_deadline == NEVER:
            self.symptom_deadline = time.monotonic() + SYMPTOM_SECONDS
        elif not reason.is_of_several:
            self._stop(FAILURE_GRACE_SECONDS)

    def _stop(self, grace_seconds: float) -> None:
        deadline = time.monotonic() + grace_seconds + ANSWER_SECONDS
        if self.attempt.stopped_at != NEVER and deadline >= self.answer_deadline:
            return
        self.attempt.stopped_at = min(self.attempt.stopped_at, time.time())
        self.answer_deadline = deadline
        for member in self.crew:
            if not member.is_stopped:
                self.crew.tell(member, "stop", grace_seconds=grace_seconds, **self.attempt.at_stop())

    def _receive_signal(self, number: int) -> None:
        self.directory.event("signal", number=number)
        self.requests.receive(number, is_order=self.order.take(number, has_ranks=self.attempt.is_running))

    def _end_idle(self) -> bool:
        """End a run that has no ranks now; say whether it did."""
        if self.attempt.is_running:
            return False
        self._stop(0.0)
        self._end_attempt()
        return True

    def _meet_deadlines(self) -> None:
        now = time.monotonic()
        stop = partial(self._stop, FAILURE_GRACE_SECONDS)
        deadlines: tuple[tuple[object, str, Callable[[], None]], ...] = (
            (self, "timeout", self._meet_timeout),
            (self, "restart_time", self._begin_again),
            (self, "symptom_deadline", stop),
            (self.requests, "deadline", stop),
            (self.relay, "deadline", self.relay.on_deadline),
        )
        for owner, name, on_deadline in deadlines:
            if now >= getattr(owner, name):
                setattr(owner, name, NEVER)
                on_deadline()
        if now >= self.gathering.deadline:
            if self.gathering.has_enough():
                self._prepare()
            else:
                self._give_up(self.gathering.error())
        if now >= self.late_ranks.deadline:
            logs = self.directory.logs(self.attempt.number)
            self.late_ranks.on_deadline(self.attempt.alive, self.num_ranks, logs)
        if now >= self.answer_deadline and not self.is_over:
            self._end_attempt()

    def _meet_timeout(self) -> None:
        limit = f"--timeout {self.plan.timeout_seconds:g} s has passed"
        self._fail(Failure(cause=failure.TIME_LIMIT, detail=limit, exit_code=124, time=0.0))
        if not self.attempt.is_running:
            self._end_attempt()

    def _end_attempt(self) -> None:
        """Finish an attempt whose ranks have all ended on the remaining nodes."""
        if self.is_over:
            return
        self.answer_deadline = self.symptom_deadline = self.restart_time = NEVER
        attempt = self.attempt
        reason = failure.first(attempt.failures) if attempt.failures else self.order.outcome(self.num_ranks)
        is_cut_short = reason is not None or attempt.alive or not attempt.is_running
        number = self.requests.number if is_cut_short else 0
        reason = failure.verdict(reason, attempt.facts(stop_signal=number, positions=self.hangs.at_end(attempt.number)))
        reason = failure.verdict(reason, Facts(nodes_down=self.revival.nodes_reported(reason)))
        if reason is not None and not self.order.is_given and self._may_start_again(reason):
            self._start_again(reason)
            return
        if self.restarts.why_not:
            self.console.finish_output()
            self.console.say(self.restarts.why_not)
        self.outcome = reason
        self.is_over = True

    def _may_start_again(self, reason: Failure) -> bool:
        lasted = time.time() - self.attempt.began if self.attempt.began else 0.0
        return self.revival.may_follow(reason, self.restarts, lasted)

    def _start_again(self, reason: Failure) -> None:
        """Begin a new attempt: a new world with its own port."""
        self.kept.note_restart()
        self.console.begin_attempt()
        self.reason = reason
        self.attempt = Attempt(self.attempt.number + 1)
        self.late_ranks = LateRanks(self.console.say)
        wait = self.restarts.wait_seconds
        if wait:
            self.restart_time = time.monotonic() + wait
        else:
            self._begin_again()
        why = failure.describe(reason, device="", with_tail=False)[0]
        later = f" in {wait:g} s" if wait else ""
        self.console.say(why if self.error is not None else f"{why}; {self.revival.going_on}{later}")
        more = {"error": failure.error_line(reason), "nodes": self.gathering.num_nodes}
        self.directory.event("restart", cause=reason.cause, rank=reason.rank, **more)

    def _begin_again(self) -> None:
        if not self.revival.begin():
            self._prepare()

    def _give_up(self, error: EchelonError) -> None:
        if self.reason is not None and not self.crew.members:  # the agents that were lost did not come again
            self.outcome = self.reason
        else:
            self.error = error
        self.is_over = True


def _without_kind(message: Message) -> Message:
    return {name: value for name, value in message.items() if name not in ("kind", "tail", "called")}
