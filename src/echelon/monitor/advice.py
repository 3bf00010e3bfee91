"""Advise on a run: what took time or stood idle, the evidence, and the option that helps."""

from __future__ import annotations

from echelon.monitor import lines, stragglers
from echelon.monitor.account import Account
from echelon.monitor.attempts import BEFORE, RESTARTS
from echelon.monitor.recorded import Recorded
from echelon.monitor.training import COMMUNICATION, DATA, SAVES
from echelon.node import frames
from echelon.plan import exchange
from echelon.units import counted, duration

MOST = 5
LEAST_LOOKS = 6  # looks at a device before it counts as idle: imports may take a minute
LOW_PERCENT = 50.0
LARGE_SHARE = 0.1
CROWDED_SHARE = 0.05  # of waits for a core, where a run has more threads than cores: no other program is needed
COMMUNICATING = 0.3
LEAST_PASSES = 1.5  # passes backward in a step from which gradients are accumulated
LEAST_SECONDS = 60.0  # a phase that is shorter needs no advice
UNSAVED_SECONDS = 1800.0
_FEWER_BYTES = {
    "--compress bf16": "gradients in fewer bits (--compress bf16: other last digits)",
    "--sync-every 100": "averages of the weights in place of gradients (--sync-every 100: another training)",
}
"""What sends less, if the run would accept it."""
_HAVE_ADVICE = (frames.COLLECTING, frames.COMPILING)
MEASURE = " (measure it: echelon profile --try)"


def advise(recorded: Recorded, account: Account) -> list[str]:
    """Return at most five sentences, the most important first."""
    of_steps = (_input, _threads, _collections, _compilers, _cores, _passes, _communication)
    is_short = account.training is not None and account.training.seconds < stragglers.LEAST_SECONDS
    rules = (_idle, *(() if is_short else of_steps), _busy, _restarts, _slow_steps, _before, _unsaved)
    return [sentence for rule in rules if (sentence := rule(recorded, account))][:MOST]


def _idle(_: Recorded, account: Account) -> str:
    idle = [each for each in account.devices if each.most == 0 and each.looks >= LEAST_LOOKS]
    if not idle:
        return ""
    names = ", ".join(f"{each.number} on {each.node}" for each in idle[:3]) + (" and more" if len(idle) > 3 else "")
    return (
        f"{len(idle)} of {len(account.devices)} devices were idle all the time (device {names}): "
        "book fewer, or start more ranks (-n)"
    )


def _input(_: Recorded, account: Account) -> str:
    training = account.training
    if training is None or training.share(DATA) < LARGE_SHARE:
        return ""
    workers = training.loader_workers
    now = f"num_workers is {workers}" if workers is not None else "num_workers"
    return (
        f"{training.share(DATA):.0%} of the steps' time was waiting for data: has the node idle cores for more workers "
        f"of the DataLoader ({now}), or can the work for each sample be done once before the training?"
        + (MEASURE if workers is not None else "")
    )


def _threads(_: Recorded, account: Account) -> str:
    rank, share = account.threads_beside
    if share < COMMUNICATING:
        return ""
    return (
        f"threads of rank {rank} beside its main thread used a core for {share:.0%} of the steps' time, more than "
        "those of other ranks: do they run Python? Then the training waits for them, as one thread at a time runs it; "
        "a process would not stop it"
    )


def _collections(_: Recorded, account: Account) -> str:
    told = _part_of_lines(account, frames.COLLECTING)
    return told and f"{told}: gc.freeze() before the first step leaves out all objects that exist then; is each needed?"


def _compilers(_: Recorded, account: Account) -> str:
    told = _part_of_lines(account, frames.COMPILING)
    graphs = account.training.graphs if account.training is not None else None
    number = f" ({counted(graphs, 'graph')})" if graphs else ""
    return told and (
        f"{told}{number}: do shapes change from step to step? Pad the inputs to a few "
        "shapes, or compile with dynamic=True"
    )


def _part_of_lines(account: Account, part: str) -> str:
    """Say how much of the steps a part took, and in which line most of it; empty if it was little."""
    of_part = [each for each in account.lines if each.line.part == part]
    share = sum(each.mean for each in of_part)
    if share < LARGE_SHARE:
        return ""
    return f"{share:.0%} of the steps' time was {lines.does(of_part[0].line, '')}"


def _cores(recorded: Recorded, account: Account) -> str:
    """Say that ranks have waited for cores; with a number of threads that fits, if they have more than that."""
    training = account.training
    if training is None or training.core_wait is None:
        return ""
    cores, per_node, threads = _crowd(recorded, account)
    is_crowded = 0 < cores < threads * per_node
    if training.core_wait < (CROWDED_SHARE if is_crowded else LARGE_SHARE):
        return ""
    told = f"ranks waited {training.core_wait:.0%} of the steps' time for a core"
    if not is_crowded:
        return f"{told}: what else runs on this node?"
    ranks = f"{counted(per_node, 'rank')} with {counted(threads, 'thread')} each"
    fits = f"; torch.set_num_threads({max(1, cores // per_node)}) fits" if threads > 1 else ": start fewer of them (-n)"
    return f"{told}: {ranks} run on {counted(cores, 'core')}{fits}"


def _crowd(recorded: Recorded, account: Account) -> tuple[int, int, int]:
    """Return the cores of a node, 0 if they are not known, its ranks, and PyTorch's threads of each."""
    cores = min((int(event.get("cores") or 0) for event in recorded.events if event["event"] == "agent"), default=0)
    threads = account.training.threads if account.training is not None else None
    return cores, account.num_ranks // max(1, account.num_nodes), threads or 1


def _passes(recorded: Recorded, account: Account) -> str:
    """Ask whether gradients are exchanged more often than they are used; the ways of --scale exchange them once."""
    training = account.training
    if training is None or recorded.scale_options is not None or (training.passes_per_step or 0.0) < LEAST_PASSES:
        return ""
    if training.share(COMMUNICATION) < COMMUNICATING or account.stragglers:
        return ""
    return (
        f"{training.share(COMMUNICATION):.0%} of the steps' time was waiting for other ranks, and a step goes backward "
        f"{training.passes_per_step:.1f} times: are the passes before the last one inside of model.no_sync()?"
    )


def _communication(recorded: Recorded, account: Account) -> str:
    training = account.training
    if training is None or training.share(COMMUNICATION) < COMMUNICATING or account.stragglers:
        return ""
    if account.alternating or any(rule(recorded, account) for rule in (_passes, _threads)):
        return ""
    if (training.core_wait or 0.0) * max(1, account.num_ranks - 1) >= training.share(COMMUNICATION) / 4:
        return ""  # a rank without a core lets all others wait, as do threads of its collectives, which nobody has seen
    alone = [each.most for each in account.lines if not each.is_common and each.line.part not in lines.WAITING]
    if max(alone, default=0.0) >= training.share(COMMUNICATION) / 2:
        return ""  # the others wait while one rank is in its line
    options = recorded.scale_options
    accepted = [text for more, text in _FEWER_BYTES.items() if exchange.accepts(options, more, saves=recorded.saves)]
    ways = ["a larger batch", *accepted]
    if options is None:
        ways.append("fewer or smaller messages, which the script sends by itself")
    return (
        f"{training.share(COMMUNICATION):.0%} of the steps' time was waiting for other ranks: would "
        f"{', or '.join(ways)}, make it shorter?{MEASURE if accepted else ''}"
    )


def _busy(_: Recorded, account: Account) -> str:
    if account.training is not None and account.training.share(DATA) >= LARGE_SHARE:
        return ""  # the reason is known
    used = [each.mean for each in account.devices if each.most > 0 and each.looks >= LEAST_LOOKS]
    mean = sum(used) / len(used) if used else 100.0
    if mean >= LOW_PERCENT:
        return ""
    return (
        f"the devices that worked were busy {mean:.0f} % of the time: look for what they wait for, such as a "
        "DataLoader with too few workers (num_workers), a small batch, or .item() in each step"
    )


def _restarts(recorded: Recorded, account: Account) -> str:
    if not _is_long(account, RESTARTS):
        return ""
    by_us = recorded.saves or exchange.accepts(recorded.scale_options, "--checkpoint-every 10m")
    how = " (--checkpoint-every)" if by_us else ""
    spare = ", and keep a node in reserve (--spares 1)" if account.num_nodes > 1 else ""
    return (
        f"failures took {duration(account.seconds_of(RESTARTS))}, {account.share(RESTARTS):.0%} of the time, and the "
        f"steps that were computed again: save more often{how}{spare}"
    )


def _is_long(account: Account, phase: str) -> bool:
    return account.share(phase) >= LARGE_SHARE and account.seconds_of(phase) >= LEAST_SECONDS


def _slow_steps(recorded: Recorded, account: Account) -> str:
    """Ask whether the line, or the part, that may explain the slow steps does: nobody has measured them apart."""
    steps, training = account.steps, account.training
    if steps is None or training is None or training.seconds < stragglers.LEAST_SECONDS or account.stragglers:
        return ""  # a straggler has its own sentence
    cores, per_node, threads = _crowd(recorded, account)
    if steps.slow_share < LARGE_SHARE or 0 < cores < threads * per_node or _cores(recorded, account):
        return ""
    told = f"{steps.slow_share:.0%} of the steps' time was in steps that took more than three times the median: "
    if training.share(DATA, SAVES) >= steps.slow_share / 2:
        return told + "do these save, or wait for data? Save less often, or give the DataLoader more workers"
    known = [each for each in account.lines if each.line.part not in (*lines.WAITING, *_HAVE_ADVICE)]
    for each in known[:1]:
        if 0.5 <= each.mean / steps.slow_share <= 1.5:  # a line with more is in the other steps too
            return f"{told}do these call {each.line.words}, which took {each.mean:.0%} of all steps? Call it less often"
    return ""


def _before(_: Recorded, account: Account) -> str:
    if not _is_long(account, BEFORE):
        return ""
    return (
        f"the script took {duration(account.seconds_of(BEFORE))} from its start to the first step: prepare the data "
        "once, in a job before, and keep caches of compilers between jobs (TORCHINDUCTOR_CACHE_DIR)"
    )


def _unsaved(recorded: Recorded, account: Account) -> str:
    is_possible = exchange.accepts(recorded.scale_options, "--checkpoint-every 10m")
    if recorded.saves or not is_possible or account.seconds < UNSAVED_SECONDS:
        return ""
    return f"the run took {duration(account.seconds)} and saved nothing by echelon: --checkpoint-every 10m"
