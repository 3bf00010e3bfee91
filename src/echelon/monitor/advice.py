"""Advise on a run: what took time or stood idle, the evidence, and the option that helps."""

from __future__ import annotations

from echelon.monitor.account import Account
from echelon.monitor.attempts import BEFORE, RESTARTS
from echelon.monitor.recorded import Recorded
from echelon.monitor.training import COMMUNICATION, DATA, SAVES
from echelon.plan import exchange
from echelon.units import duration

MOST = 5
LEAST_LOOKS = 6
"""Looks at a device before it counts as idle: imports may take a minute."""
LOW_PERCENT = 50.0
LARGE_SHARE = 0.1
COMMUNICATING = 0.3
LEAST_SECONDS = 60.0
"""A phase that is shorter needs no advice."""
UNSAVED_SECONDS = 1800.0
_FEWER_BYTES = {
    "--compress bf16": "gradients in fewer bits (--compress bf16: other last digits)",
    "--sync-every 100": "averages of the weights in place of gradients (--sync-every 100: another training)",
}
"""What sends less, if the run would accept it."""
MEASURE = " (measure it: echelon profile --try)"


def advise(recorded: Recorded, account: Account) -> list[str]:
    """Return at most five sentences, the most important first."""
    rules = (_idle, _input, _communication, _busy, _restarts, _slow_steps, _before, _unsaved)
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


def _communication(recorded: Recorded, account: Account) -> str:
    training = account.training
    if training is None or training.share(COMMUNICATION) < COMMUNICATING or account.stragglers:
        return ""
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


def _slow_steps(_: Recorded, account: Account) -> str:
    steps, training = account.steps, account.training
    if steps is None or steps.slow_share < LARGE_SHARE:
        return ""
    told = f"{steps.slow_share:.0%} of the steps' time was in steps that took more than three times the median: "
    if training is not None and training.share(DATA, SAVES) < steps.slow_share / 2:
        return told + "evaluations, or other work of the script between its steps; do it less often"
    return told + "saves, evaluations, or waiting for data; save less often, or give the DataLoader more workers"


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
