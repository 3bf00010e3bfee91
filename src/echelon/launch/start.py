"""Carry out a plan: write the run directory, start the agents, supervise, report."""

from __future__ import annotations

import os
import re
import resource
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from echelon.host import Host, terminal
from echelon.launch import agents as launch_agents
from echelon.launch import failure, package
from echelon.launch.agents import AllAgents
from echelon.launch.console import Console
from echelon.launch.crew import listen
from echelon.launch.failure import Facts, Failure
from echelon.launch.hangs import shortest
from echelon.launch.keeper import fork_supervisor
from echelon.launch.kept import KeeperLink
from echelon.launch.lookouts import NOBODY, Load, Look, Lookouts, Observer
from echelon.launch.restarts import MOST_LOSSES
from echelon.launch.run_directory import RunDirectory, unwritable, unwritable_again
from echelon.launch.runs import short_name
from echelon.launch.supervisor import Supervisor
from echelon.launch.trackers import TrackerProcess
from echelon.node import agent_spec, private
from echelon.plan import exchange
from echelon.scheduler import members
from echelon.scheduler.protocol import EVERY, AgentStart, End
from echelon.spec import Plan
from echelon.units import counted, duration

REASON_SECONDS = 1.0


def start(
    plan: Plan,
    host: Host,
    look: Look | None = None,
    meanwhile: Callable[[], None] = lambda: None,
    observer: Observer = NOBODY,
) -> int:
    """Carry out a plan, and return the exit code that a shell user expects.

    `look` is the survey to take beside the ranks; `meanwhile` is called while the agents start; the observer sees the
    samples of the run, and its end.
    """
    listener = _listener(plan)
    directory = RunDirectory.create(plan)
    kept = fork_supervisor(plan, directory, listener)
    supervisor: Supervisor | None = None
    try:
        if kept.num_earlier_supervisors:
            listener = _listener(plan)
        archive, secret = directory.file("node.pyz"), _secret(plan)
        _write_for_agents(plan, directory, listener, secret, look, kept, host.environ)
        console = Console(
            is_terminal=terminal.is_terminal(sys.stderr), shows_progress=terminal.moves_cursor(sys.stderr, host.environ)
        )
        if not kept.num_earlier_supervisors:
            _say_how(plan, console)
        supervisor = Supervisor(plan, directory, listener, secret, console, kept)
        lookouts = Lookouts(look, directory, plan.num_nodes + plan.num_spares, console.say)
        supervisor.on_other_message = lookouts.hear
        supervisor.samples.load, supervisor.samples.host = lookouts.load, lookouts.host
        supervisor.samples.say, supervisor.samples.observer = console.say, observer
        agents = _start_agents(plan, archive, host, supervisor, kept)
        trackers = TrackerProcess(plan, host, supervisor.selector, console.say)
        allow_many_files()
        exit_code = 1
        try:
            if not kept.num_earlier_supervisors:
                meanwhile()
            outcome = supervisor.run()
            exit_code = outcome.exit_code if outcome is not None else 0
            kept.note_end(exit_code)
        finally:
            supervisor.close(exit_code)
            agents.end(seconds=members.of(plan.where).end_seconds, waits_first=supervisor.crew.is_complete)
            supervisor.screen.end(supervisor.outcome, directory.logs(supervisor.attempt.number), plan.show)
        lookouts.close()
        supervisor.samples.close()
        outcome = _with_word_of_scheduler(outcome, plan, agents.said, host)
        _report(plan, directory, supervisor, outcome, time.monotonic() - kept.began, lookouts.load)
        trackers.close()
        _say_end(plan, directory, supervisor, exit_code, time.monotonic() - kept.began, observer)
        return exit_code
    finally:
        for name in (private.SECRET, *members.of(plan.where).files({})):
            directory.remove(name)
        directory.close()
        if supervisor is not None:
            supervisor.signals.close()
        kept.dismiss()


def _write_for_agents(
    plan: Plan,
    directory: RunDirectory,
    listener: socket.socket,
    secret: bytes,
    look: Look | None,
    kept: KeeperLink,
    environ: Mapping[str, str],
) -> None:
    """Write what agents read: their program, and whom they connect to."""
    hosts = own_addresses() if members.of(plan.where).is_remote else [_local_address(listener)]
    addresses = [(host, listener.getsockname()[1]) for host in hosts]
    looks = look.asked if look is not None else None
    files = members.of(plan.where).files(environ)
    spec = launch_agents.spec(
        plan, addresses, secret, looks=looks, first_life=kept.num_earlier_supervisors * MOST_LOSSES
    )
    try:
        directory.insist(lambda: package.write(directory.file("node.pyz")))
        directory.insist(lambda: agent_spec.write(spec, directory.path))
        for name, content in files.items():
            directory.insist(partial(private.write, directory.file(name), content))
    except OSError as error:  # a full disk, or an exhausted quota
        raise (unwritable_again if kept.num_earlier_supervisors else unwritable)(directory.path, error) from None


def _say_how(plan: Plan, console: Console) -> None:
    """Say whether the ranks train together, once: where nodes are started by hand, on the first."""
    if plan.num_nodes * plan.ranks_per_node == 1 or plan.node_rank > 0:
        return
    if plan.scale != "off":
        console.tell_person("all ranks train one model together; only rank 0 writes files")
    elif plan.scale_why:
        console.say(f"not scaled: {plan.scale_why}")


def _start_agents(plan: Plan, archive: str, host: Host, supervisor: Supervisor, kept: KeeperLink) -> AllAgents:
    agents = AllAgents(plan, archive, host, supervisor.selector, kept.note_agents)
    agents.start(on_end=partial(_agents_ended, supervisor, plan), on_said=partial(_agents_said, supervisor, plan))
    revival, scheduler = supervisor.revival, members.of(plan.where)
    revival.start_agent, revival.clear = agents.start_again, agents.clear
    revival.nodes_down = lambda nodes: scheduler.nodes_down(nodes, agents.said, host)
    return agents


def _secret(plan: Plan) -> bytes:
    if plan.where != "meet":
        return os.urandom(32)
    from echelon.launch import meeting

    return meeting.secret(plan)


def _listener(plan: Plan) -> socket.socket:
    """Open the supervisor's port; if another node hosts the supervisor, become its agent and never return."""
    if plan.where != "meet":
        return listen("" if members.of(plan.where).is_remote else "127.0.0.1")
    from echelon.launch import meeting

    return meeting.host(plan) or meeting.join(plan)


def _local_address(listener: socket.socket) -> str:
    address = str(listener.getsockname()[0])
    return "127.0.0.1" if address == "0.0.0.0" else address


def own_addresses() -> list[str]:
    """Return every name and address of this node that others may reach, likeliest first."""
    name = socket.gethostname()
    addresses = [name]
    try:
        addresses += [str(info[4][0]) for info in socket.getaddrinfo(name, None, socket.AF_INET)]
    except OSError:
        pass  # the numeric addresses below remain
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: asks the kernel which address faces the network
            addresses.append(probe.getsockname()[0])
        except OSError:
            pass  # no route, as on an isolated test machine
    return list(dict.fromkeys([*addresses, "127.0.0.1"]))


def allow_many_files() -> None:
    """Raise the limit on open files for a thousand agents, after the children started with the user's limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else 65536, hard))


def _agents_ended(supervisor: Supervisor, plan: Plan, start: AgentStart, exit_code: int, said: str) -> None:
    """Handle the end of a process of agents before the end of the run."""
    if supervisor.is_over:
        return
    end, crew, revival = _end(start, exit_code, said), supervisor.crew, supervisor.revival
    why = end.how + (f": {_first_line(end.said)}" if end.said else "")
    if start.agent_index in crew.members:
        crew.expel(crew.members[start.agent_index], why)
    elif revival.has_begun and (crew.members or revival.is_waiting):
        return
    elif not crew.is_complete:
        supervisor.error = members.of(plan.where).cannot_start(plan, end)
        supervisor.is_over = True
    elif start.agent_index == EVERY:
        supervisor.lose_all(why)


def _end(start: AgentStart, exit_code: int, said: str) -> End:
    return End(start=start, exit_code=exit_code, how=f"{start.name} {failure.how(exit_code)}", said=said.strip())


def _agents_said(supervisor: Supervisor, plan: Plan, start: AgentStart, said: str) -> None:
    """Shorten the wait for agents when one of them cannot join; its reason may still arrive."""
    scheduler = members.of(plan.where)
    if not supervisor.crew.is_complete and re.search(scheduler.lost_agent, said, re.MULTILINE):
        gathering = supervisor.gathering
        gathering.error = partial(scheduler.cannot_start, plan, _end(replace(start, name="an agent"), 1, said))
        gathering.deadline = min(gathering.deadline, time.monotonic() + REASON_SECONDS)


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _with_word_of_scheduler(outcome: Failure | None, plan: Plan, said: str, host: Host) -> Failure | None:
    if outcome is None or not failure.may_be_of_scheduler(outcome):
        return outcome
    of_scheduler = members.of(plan.where).why_ended(said, host)
    return failure.verdict(outcome, Facts(of_scheduler=of_scheduler))


def _report(
    plan: Plan, directory: RunDirectory, supervisor: Supervisor, outcome: Failure | None, seconds: float, load: Load
) -> None:
    console = supervisor.console
    exit_code = outcome.exit_code if outcome is not None else 0
    num_ranks = supervisor.num_ranks
    fields = (
        {"cause": outcome.cause, "detail": outcome.detail, "rank": outcome.rank, "node": outcome.node}
        if outcome
        else {}
    )
    directory.write_json(
        "report.json",
        {"format": 1, "exit_code": exit_code, "seconds": round(seconds, 3), "ranks": num_ranks,
         "attempts": supervisor.attempt.number + 1, "restarts": supervisor.restarts.count, **fields,
         **({"load": load} if load else {})},
    )  # fmt: skip
    directory.event("end", exit_code=exit_code, **fields)
    if outcome is not None:
        console.say_lines(["echelon: " + line if n == 0 else line for n, line in enumerate(_explain(plan, outcome))])
    for member in supervisor.crew if plan.launch == "warm" else ():
        if member.why_exec:  # it did not fork its ranks as planned
            node, why = member.placement.node, member.why_exec
            console.say(f"note: {node} started a new process for each rank, without a fork: {why}")
    if directory.problem:
        console.say(f"warning: the run directory is incomplete: {directory.problem}")


def _say_end(
    plan: Plan, directory: RunDirectory, supervisor: Supervisor, exit_code: int, seconds: float, observer: Observer
) -> None:
    """Write the last line of the run."""
    ranks = counted(supervisor.num_ranks, "rank")
    # mpirun places its ranks as it likes, and not always on all nodes
    num_nodes = next((member.share.num_nodes for member in supervisor.crew if member.share), plan.num_nodes)
    nodes = f" on {num_nodes} nodes" if num_nodes > 1 else ""
    numbers = observer.sum_up(directory.path)
    words = [f"{ranks}{nodes}", duration(seconds), *([numbers] if numbers else []), f"exit {exit_code}"]
    supervisor.console.say(" · ".join([*words, f"run {short_name(directory.path)}"]))


def _explain(plan: Plan, outcome: Failure) -> list[str]:
    if outcome.cause == failure.INTERRUPTED:
        name, *saved = outcome.detail.split("; ")
        return ["; ".join([f"{name} stopped the run", *saved])]
    if outcome.cause in (failure.BY_SCHEDULER, failure.TIME_LIMIT):
        return [f"{outcome.cause}: {outcome.detail}"]
    if outcome.cause in (failure.LOST_NODE, failure.LOST_AGENT) and plan.min_nodes == plan.num_nodes > 1:
        hint = members.of(plan.where).without_lost_nodes(plan)
        return [f"{outcome.cause}: {outcome.detail}", f"  hint: {hint}"]
    has_devices = plan.devices_per_node > 0
    is_shown = plan.show is None or outcome.rank in plan.show  # then the console has already shown its last words
    device = str(outcome.local_rank) if has_devices else ""
    shown = replace(outcome, log=shortest(outcome.log)) if outcome.log else outcome
    options = plan.scale_options
    cannot_shard = options is not None and not exchange.goes_with(options, "fsdp")
    return failure.describe(
        shown,
        device=device,
        with_tail=not is_shown or outcome.cause == failure.HANG,
        scale="off" if plan.scale == "data" and cannot_shard else plan.scale,
    )
