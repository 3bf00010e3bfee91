"""The agent, one per node: it starts the ranks, reads their output, ends them, and reports to the supervisor."""

import os
import selectors
import signal
import time
from typing import Any, Dict, List, Optional

from ..environment.errors import WrongEnvironmentError
from . import connect, guard, memory_folder, order, private, processes, report, server, sweep, warning_signals
from .agent_spec import AgentSpec, Placement
from .binding import Binding, Holdings
from .channel import Channel, Closed, Message
from .guard import Guard
from .hang_watch import AT_END, HangWatch
from .lookout import Lookout
from .output import RankOutput
from .processes import STOPPED_SECONDS, WHY, HaltWatch, Parent
from .ranks import Attempt, OutputMultiplexer, Rank
from .starter import Starter, new_rank, num_threads, place_of, surroundings_of_ranks
from .stores import Stores
from .sweep import mark_of
from .warm_process import CannotStart, WarmProcess

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
FLUSH_SECONDS = 1.0
ORPHAN_GRACE_SECONDS = 1.0


class Agent:
    """One node's part of a run: a loop over the supervisor, the warm process and the ranks' pipes."""

    def __init__(
        self, spec: AgentSpec, placement: Placement, watcher: Guard, *, archive: str, run_directory: str, life: int = 0
    ) -> None:
        self.spec = spec
        self.placement = placement
        self.run_directory = run_directory
        self.mark = mark_of(spec.run_id, placement.agent_index, life)
        self.parent = Parent.of_this(spec.is_step)
        self.guard = watcher
        self._secret = os.path.join(run_directory, private.SECRET)
        self.memory = memory_folder.hold(memory_folder.path(spec, placement.agent_index))
        self.guard.name(self.mark, self._secret, self.memory)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.guard.link, selectors.EVENT_READ, self._replace_guard)
        self.channel: Optional[Channel] = None
        self.attempt: Optional[Attempt] = None
        self.world: Message = {}  # the facts that all ranks of the attempt share
        self.postponed: Optional[Message] = None
        self.exit_code: Optional[int] = None
        self.is_alone = False  # whether this agent leaves the run as soon as its ranks have ended
        self.next_flush = 0.0
        self.outputs = OutputMultiplexer(
            self.selector, self._tell, lambda: self.channel is not None and self.channel.is_stalled
        )
        environ = surroundings_of_ranks(spec, placement, self.mark, self.memory)
        self.hangs = HangWatch(
            spec.hang_timeout, environ, self._tell, lambda: self.channel is not None and self.channel.is_stalled
        )
        self.binding = Binding(spec, placement, environ)
        self.holdings: Optional[Holdings] = None
        self.stores = Stores(self.selector, spec)
        num_cores = self.binding.num_cores(placement.first_local_rank)
        environ.setdefault("OMP_NUM_THREADS", str(num_threads(placement, num_cores, spec.cpus_per_rank)))
        self.starter = Starter(spec, placement, self.binding, environ, archive)
        self.imports = RankOutput(
            os.path.join(run_directory, "logs", "imports-node-%d.log" % placement.node_rank),
            self.outputs.forward_imports if placement.agent_index == 0 else None,
        )
        stdout, stderr = self.imports.open_pipes()
        self.starter.warm_up(stdout, stderr)
        os.close(stdout)
        os.close(stderr)
        self.copies: List[Any] = []
        if spec.staged:
            from .staged_copy import hold

            self.copies = hold(spec.staged)
        self.warm_watch = HaltWatch()
        self.why_no_warm = "the process that forked the ranks was killed"
        self.lookout = Lookout(self.selector, self._tell)
        self.lookout.prepare(spec, placement, environ, archive, run_directory)

    def facts(self) -> Dict[str, Any]:
        return {**self.placement.facts(), "why_exec": self.starter.why_exec}

    def run(self, channel: Channel) -> int:
        """Serve the supervisor until it ends the run; return the run's exit code."""
        self._catch_signals()
        self.channel = channel
        connect.start_beat(channel)
        self.selector.register(channel, selectors.EVENT_READ, self._hear_supervisor)
        self.outputs.listen_to(self.imports)
        if self.starter.warm is not None:
            self.selector.register(self.starter.warm.socket, selectors.EVENT_READ, self._hear_warm)
        while self.exit_code is None:
            self._turn()
        self.leave()
        return self.exit_code

    def _turn(self) -> None:
        if self.parent.has_died():
            self.is_alone = True
            self._tell("lost", what="agent", why=WHY)
            self._leave_run()
        warm = self.starter.warm
        if warm is not None and warm.pid and self.warm_watch.is_frozen(warm.pid):
            self.why_no_warm = "the process that forked the ranks was stopped by a signal for %.0f s" % STOPPED_SECONDS
            warm.kill()  # its ranks cannot be waited for, so they end as if it was killed
        patience = self._advance()
        self._adjust_interest()
        for key, _events in self.selector.select(patience):
            if self.selector.get_map().get(key.fd) is key:  # an earlier event of this turn may have closed it
                key.data()
        if time.monotonic() >= self.next_flush:
            self.next_flush = time.monotonic() + FLUSH_SECONDS
            for rank in self.attempt.ranks if self.attempt is not None else ():
                rank.output.flush()

    def _advance(self) -> float:
        """Advance a stop; return how long the loop may wait for the next event."""
        attempt = self.attempt
        wanted = attempt.advance() if attempt is not None else None
        if attempt is not None and attempt.is_over:
            self.outputs.silence(attempt)
            self.guard.release()
            self.attempt = None
            if self.channel is None or self.is_alone:
                self.exit_code = 1
            else:
                self._tell("stopped", attempt=attempt.number)
            return 0.0
        due = self.holdings.look() if self.holdings is not None and self.attempt is not None else None
        waits = (wanted, due, self.lookout.advance(), self.hangs.look(self.attempt))
        return min(FLUSH_SECONDS if seconds is None else seconds for seconds in waits)

    # Messages of the supervisor

    def _hear_supervisor(self) -> None:
        if self.channel is None:
            return
        self.channel.flush()
        try:
            messages = self.channel.receive()
        except Closed:
            self._lose_supervisor()
            return
        for message in messages:
            self._obey(message)

    def _obey(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "ports":
            free = server.free_ports(message["count"])
            self._tell("ports", attempt=message["attempt"], ports=free, store_port=self.stores.serve(message))
        elif kind == "world":
            self.world = message
        elif kind == "start":
            self._start({**self.world, **message})
        elif kind == "signal":
            self._signal(message["number"])
        elif kind == "stacks":
            self.hangs.collect(self.attempt, message["round"])
        elif kind == "who catches":
            attempt = self.attempt
            self._tell("catching", count=len(order.catchers(attempt, message["number"])) if attempt is not None else 0)
        elif kind == "order":
            self._order(message)
        elif kind == "stop":
            self._stop(message["grace_seconds"], message["attempt"], asks=message["asks"])
        elif kind == "end":
            self.exit_code = message["exit_code"]

    def _signal(self, number: int) -> None:
        self._note_warning(number)
        if self.attempt is not None:
            self.attempt.signal(number)
        elif self.postponed is not None and number in (signal.SIGINT, signal.SIGTERM):
            self._stop(0.0, self.postponed["attempt"])  # no rank was started that could answer the signal

    def _note_warning(self, number: int) -> None:
        """Tell which ranks ignore a signal that announces the end of the job."""
        ranks = self.attempt.by_pid() if self.attempt is not None and number in warning_signals.WARNINGS else {}
        pids = warning_signals.ignoring(number, ranks)
        if pids:
            self._tell("ignored", number=number, ranks=sorted(ranks[pid].rank for pid in pids))

    def _order(self, message: Message) -> None:
        if message["charge"] == "echelon":
            order.give(self.mark, message["number"])
        elif self.attempt is not None:
            order.warn(self.attempt, message["number"])

    def _lose_supervisor(self) -> None:
        if self.channel is not None:
            self.selector.unregister(self.channel)
            self.channel = None
            guard.remove_secret(self._secret)  # the supervisor was killed, so it cannot remove the secret
        self._leave_run()

    def _leave_run(self) -> None:
        if self.attempt is None:
            self.exit_code = 1
        else:
            self.attempt.stop(grace_seconds=ORPHAN_GRACE_SECONDS)

    def _stop(self, grace_seconds: float, number: int, *, asks: bool = False) -> None:
        self.postponed = None
        if asks:
            self.hangs.collect(self.attempt, AT_END)
        if self.attempt is None:
            self._tell("stopped", attempt=number)
        else:
            self.attempt.stop(grace_seconds=grace_seconds)

    # Ranks

    def _start(self, message: Message) -> None:
        if self.starter.is_waiting:
            self.postponed = message
            return
        self.postponed = None
        self.outputs.show(message["show"], self.imports)
        self.attempt = Attempt(message["attempt"], self.mark, self._spared)
        self.starter.begin(message)
        self.holdings = Holdings(self.binding, self.attempt, self.placement.num_ranks, self._tell)
        if self.binding.why_not:
            self._tell("unbound", attempt=self.attempt.number, why=self.binding.why_not)
        for offset in range(self.placement.num_ranks):
            place = place_of(message, self.placement, offset)
            try:
                rank = new_rank(place, message["log_directory"], self.outputs.forward(place.rank))
            except OSError as error:
                why = "its log %s: %s" % (message["log_directory"], error.strerror)
                self._tell("exit", **report.of_no_start(self.attempt, place.rank, why))
                continue
            self.attempt.ranks.append(rank)
            try:
                self.starter.start(rank, self.starter.variables(place, message))
            except (CannotStart, WrongEnvironmentError) as error:
                rank.status = 127
                self._tell("exit", **report.of_no_start(self.attempt, rank.rank, str(error)))
                continue
            self.outputs.listen_to(rank.output)
            if rank.pid:
                self._was_started(rank)
                self.holdings.note_started(rank)

    def _was_started(self, rank: Rank) -> None:
        self.guard.watch([rank])
        attempt = self.attempt
        if attempt is not None:
            self._tell("started", attempt=attempt.number, rank=rank.rank, pid=rank.pid)
            for number in rank.owed:
                sweep.send(rank.pid, number)

    def _was_ended(self, pid: int, status: int) -> None:
        rank = self.attempt.by_pid().get(pid) if self.attempt is not None else None
        if rank is None or self.attempt is None:
            return
        rank.status = status
        self.outputs.hear_all(rank.output)
        rank.output.flush()
        self.hangs.tell_end(self.attempt, rank)
        self._tell("exit", **report.of_exit(self.attempt, rank))

    def _spared(self) -> sweep.Spared:
        """Return the processes to spare: their other descendants belong to the ranks."""
        warm = (self.starter.warm.pid,) if self.starter.warm is not None and self.starter.warm.pid else ()
        return sweep.Spared(frozenset((os.getpid(), self.guard.pid, *warm)), frozenset(self.lookout.pids))

    # The warm process

    def _hear_warm(self) -> None:
        warm = self.starter.warm
        if warm is None:
            return
        message = warm.receive()
        if message is None:
            self._lose_warm()
        elif message["kind"] == "ready":
            if message["why_not"]:
                self._end_warm(message["why_not"])
            facts = {"warm_pid": warm.pid, "is_pooled": warm.is_lent, "why_no_pool": self.starter.why_no_pool}
            self._tell("imported", seconds=message["seconds"], why_exec=self.starter.why_exec, **facts)
            if self.postponed is not None:
                self._start(self.postponed)
        elif message["kind"] == "forked" and self.attempt is not None:
            rank = next(rank for rank in self.attempt.ranks if rank.local_rank == message["local_rank"])
            rank.pid = message["pid"]
            self._was_started(rank)
        elif message["kind"] == "held" and self.attempt is not None and self.holdings is not None:
            rank = next(rank for rank in self.attempt.ranks if rank.local_rank == message["local_rank"])
            self.holdings.note(rank, message["cpus"], message["environ"])
        elif message["kind"] == "unforked" and self.attempt is not None:
            rank = next(rank for rank in self.attempt.ranks if rank.local_rank == message["local_rank"])
            rank.status = 127
            self._tell("exit", **report.of_no_start(self.attempt, rank.rank, "cannot fork: " + message["why"]))
        elif message["kind"] == "exit":
            self._was_ended(message["pid"], message["status"])

    def _lose_warm(self) -> None:
        was_importing = self.starter.is_waiting
        self._end_warm("the process that imports ended before it was done")
        if was_importing:
            self._tell("imported", seconds=0.0, why_exec=self.starter.why_exec, warm_pid=0)
            if self.postponed is not None:
                self._start(self.postponed)
        elif self.attempt is not None:
            self._tell("lost", what="warm process", why=self.why_no_warm)
            for rank in self.attempt.ranks:  # no one can wait for them without their parent; the sweep ends them
                rank.status = rank.status if rank.status is not None else -signal.SIGKILL
            self.attempt.stop(grace_seconds=0.0)

    def _end_warm(self, why: str) -> None:
        if self.starter.warm is not None:
            self.selector.unregister(self.starter.warm.socket)
            self.starter.give_up_fork(why)

    # Duties of the loop itself

    def _adjust_interest(self) -> None:
        """Watch for the supervisor's socket to become writable; resume the ranks' pipes once it has."""
        if self.channel is None:
            return
        self.outputs.resume()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.channel.has_unsent else 0)
        self.selector.modify(self.channel, events, self._hear_supervisor)

    def _tell(self, kind: str, **fields: Any) -> None:
        if self.channel is not None:
            self.channel.send(kind, **fields)

    def _catch_signals(self) -> None:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (*FORWARDED, signal.SIGCHLD):
            signal.signal(number, lambda _number, _frame: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.selector.register(reading, selectors.EVENT_READ, lambda: self._hear_signals(reading))

    def _hear_signals(self, pipe: int) -> None:
        for number in os.read(pipe, 4096):
            if number == signal.SIGCHLD:
                for pid, status in processes.ended():
                    self._was_ended(pid, status)
            elif number != signal.SIGCONT:
                self._tell("signalled", number=number)
                is_warning = order.is_warning(self.spec.environ, number)  # then the supervisor decides
                if not is_warning and (self.attempt is None or self.spec.forwards_signals):
                    self._signal(number)
                elif not is_warning:
                    self._note_warning(number)

    def _replace_guard(self) -> None:
        self.selector.unregister(self.guard.link)
        self.guard = guard.start()
        self.guard.name(self.mark, self._secret, self.memory)
        self.guard.watch(rank for rank in (self.attempt.ranks if self.attempt is not None else ()) if rank.pid > 0)
        self.selector.register(self.guard.link, selectors.EVENT_READ, self._replace_guard)

    def _reap_warm(self, warm: WarmProcess) -> None:
        """Wait for the warm process, so that `time echelon run` counts the ranks' seconds; a pool waits for its own."""
        try:
            os.waitpid(warm.pid or -1, os.WNOHANG if warm.is_lent else 0)
        except ChildProcessError:
            pass  # it had ended before and was already waited for

    def leave(self) -> None:
        """End all processes that this agent started for itself."""
        order.withdraw(self.mark)
        self.lookout.close()
        self.starter.close()
        if self.starter.warm is not None:
            self.starter.warm.kill()
            self._reap_warm(self.starter.warm)
        if self.attempt is not None:  # the supervisor gave up the run while ranks were alive
            sweep.kill_all(self.mark, set(self.attempt.sessions), self._spared())
        # after a killed supervisor another may follow: then the guard keeps the states in memory for the next agent
        is_lost = self.channel is None and self.spec.max_restarts > 0
        is_over = not is_lost or not private.is_run_alive(self.run_directory)
        if is_over:
            private.remove_folder(self.memory)
        self.imports.close()
        self.imports.remove_if_empty()
        if is_over:
            self.guard.dismiss()
        for copy in self.copies:
            copy.release()
        if self.copies:
            from .staged_copy import clear_dead

            clear_dead(os.path.dirname(self.copies[0].path))  # if who brought them was killed; else it removes them
        if self.spec.is_private_directory:
            private.remove_folder(self.run_directory)
