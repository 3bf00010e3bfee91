"""Write the report of a run, its last line, its paragraph for an application, and the comparison of two runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from echelon.monitor import bad_steps, facts, growth, stragglers
from echelon.monitor import lines as script_lines
from echelon.monitor.account import Account
from echelon.monitor.attempts import RESTARTS, Attempt
from echelon.monitor.costs import JOULES_PER_KWH
from echelon.monitor.recorded import Recorded
from echelon.monitor.training import COMMUNICATION, DATA, PARTS, REST, SAVES, MeasuredTraining
from echelon.node.frames import IN_BACKWARD
from echelon.units import aligned, amount, cost, counted, duration, rate, rows_of, size, step_time

MOST_STRAGGLERS = 3
MOST_GROWTHS = 4
MOST_NAME = 28


def text(
    name: str,
    state: str,
    recorded: Recorded,
    account: Account,
    advice: list[str],
    earlier: Sequence[Account] = (),
    *,
    predicted: Sequence[str] = (),
    costs: Sequence[str] = (),
    has_findings: bool = True,
) -> str:
    """Return the lines of a report; `earlier` are the jobs of the chain before this one.

    `predicted` compares memory and time with what was predicted of them. Without findings only numbers are left.
    """
    began = float(recorded.events[0]["time"]) if recorded.events else 0.0
    when = f" · {time.strftime('%Y-%m-%d %H:%M', time.localtime(began))}" if began else ""
    lines = [
        f"run {name} · {state}{when}",
        *rows_of("asked", [_asked(recorded, account)]),
        *rows_of("used", [_used(recorded, account)]),
        *rows_of("costs", costs),
        *rows_of("chain", [_chain([*earlier, account], recorded.path)] if earlier else []),
    ]
    total = sum(phase.seconds for phase in account.phases)
    lines += rows_of(
        "time",
        [
            f"{phase.name:<23}{step_time(phase.seconds):>14}{phase.seconds / total:>7.1%}"
            for phase in account.phases
            if phase.seconds
        ],
    )
    failed = [attempt for attempt in account.attempts if attempt.cause]
    lines += rows_of("steps", _steps(account))
    lines += _training(account)
    lines += rows_of("predicted", predicted)
    lines += rows_of("devices", [_devices(account)] if account.devices else [])
    lines += rows_of("failures", [line for each in failed for line in _failure(each, recorded)])
    for word, sentences in findings(recorded, account, advice) if has_findings else ():
        lines += rows_of(word, sentences)
    return "\n".join(lines) + "\n"


def where(account: Account) -> list[str]:
    """Say in which lines of the script the steps were."""
    graphs = account.training.graphs if account.training is not None else None
    return script_lines.sentences(account.lines, account.num_ranks, graphs)


def findings(recorded: Recorded, account: Account, advice: Sequence[str]) -> list[tuple[str, Sequence[str]]]:
    """Return what was found in a run in sentences, by the word of their lines."""
    return [
        ("bad step", bad_steps.told(recorded.events)),
        ("note", bad_steps.told(recorded.events, facts.OF_THE_WAY)),
        ("where", where(account)),
        ("straggler", _stragglers(account)),
        ("grows", [each.sentence for each in account.growths[:MOST_GROWTHS]]),
        ("advice", advice),
    ]


def _stragglers(account: Account) -> list[str]:
    if account.alternating:
        return [stragglers.turns(account.alternating)]
    return [stragglers.sentence(each) for each in account.stragglers[:MOST_STRAGGLERS]]


def comparison(names: tuple[str, str], accounts: tuple[Account, Account]) -> str:
    """Return a table of two runs, with the second as a multiple of the first."""
    pairs = _compared(*accounts)
    width = max(len(title) for title, *_ in pairs)
    rows = [(" " * width, *names, "ratio")]
    for title, one, other, shown in pairs:
        ratio = f"{other / one:.2f}" if one else "–"
        rows.append((title.ljust(width), shown(one), shown(other), ratio))
    return "".join(f"{line}\n" for line in aligned(rows, to_right=True))


def _compared(one: Account, other: Account) -> list[tuple[str, float, float, Callable[[Any], str]]]:
    pairs: list[tuple[str, float, float, Callable[[Any], str]]] = [
        ("time", one.seconds, other.seconds, duration),
        ("ranks", one.num_ranks, other.num_ranks, str),
        ("GPU hours", one.device_hours, other.device_hours, amount),
    ]
    if one.steps is not None and other.steps is not None:
        pairs += [
            ("steps", one.steps.number, other.steps.number, str),
            ("steps a second", one.steps.per_second, other.steps.per_second, rate),
            ("a step, median", one.steps.median_seconds, other.steps.median_seconds, step_time),
            ("a step, 99 %", one.steps.seconds_99, other.steps.seconds_99, step_time),
        ]
    if one.training is not None and other.training is not None:
        pairs += _compared_trainings(one.training, other.training)
    return pairs


def _compared_trainings(
    one: MeasuredTraining, other: MeasuredTraining
) -> list[tuple[str, float, float, Callable[[Any], str]]]:
    pairs: list[tuple[str, float, float, Callable[[Any], str]]] = []
    if one.samples_per_second is not None and other.samples_per_second is not None:
        pairs.append(("samples a second", one.samples_per_second, other.samples_per_second, rate))
    parts = [*one.parts, *(part for part in other.parts if part not in one.parts)]
    return pairs + [
        (f"steps: {part}", one.parts.get(part, 0.0), other.parts.get(part, 0.0), step_time) for part in parts
    ]


def _asked(recorded: Recorded, account: Account) -> str:
    plan, booking = recorded.plan, recorded.booking
    ranks = counted(account.num_ranks, "rank")
    words = [f"{ranks} on {counted(account.num_nodes, 'node')}"]
    if booking:
        words.append(f"{booking.get('partition')} of {booking.get('machine')} for {booking.get('minutes')} min")
    scale = plan.get("scale_options")
    words.append(f"scaled ({scale['how']})" if isinstance(scale, dict) else "not scaled")
    return " · ".join(words)


def _used(recorded: Recorded, account: Account) -> str:
    words = [duration(account.seconds)]
    if account.num_devices:
        words.append(f"{amount(account.device_hours)} GPU hours")
    if account.energy_joules is not None:
        words.append(f"{amount(account.energy_joules / JOULES_PER_KWH)} kWh of its devices")
    if account.billed is not None:
        most = cost(recorded.booking["billed"], account.billed_unit)
        words.append(f"billed: {amount(account.billed)} of at most {most}")
    return " · ".join(words)


def _chain(jobs: Sequence[Account], path: str) -> str:
    """Sum up the jobs of a chain; the rest of the report is of the last job."""
    words = [f"{len(jobs)} jobs", duration(sum(job.seconds for job in jobs))]
    hours = sum(job.device_hours for job in jobs)
    words += [f"{amount(hours)} GPU hours"] if hours else []
    words += [f"{sum(job.steps.number for job in jobs if job.steps is not None)} steps"]
    return " · ".join(words) + f"; this is the last job, and echelon report {path}/jobs/1 shows the first"


def _steps(account: Account) -> list[str]:
    steps = account.steps
    if steps is None:
        return ["no optimizer of PyTorch made a step"] if account.attempts else []
    attempts = f" in {len(account.attempts)} attempts" if len(account.attempts) > 1 else ""
    again = f", {steps.num_again} of them again" if steps.num_again else ""
    speed = f" · {rate(steps.per_second)} a second" if steps.per_second else ""
    lines = [f"{steps.number}{attempts}{again}{speed} · goodput {account.goodput:.1%}"]
    if steps.median_seconds:
        lines.append(
            f"half take at most {step_time(steps.median_seconds)}, 90 % {step_time(steps.seconds_90)}, "
            f"99 % {step_time(steps.seconds_99)}"
        )
    return lines


def _training(account: Account) -> list[str]:
    """Say what the steps were made of, how fast they were, the loss, and the memory."""
    training = account.training
    if training is None:
        return []
    lines: list[str] = []
    for part, share in _shares_of_step(account, training):
        shown = step_time(share * training.seconds)
        lines.append(f"{part:<{37 - len(shown)}}{shown}{share:>7.1%}")
    lines = rows_of("a step", lines)
    rates = [(training.samples_per_second, "samples"), (training.tokens_per_second, "tokens")]
    told = [f"{rate(number)} {what} a second" for number, what in rates if number is not None]
    lines += rows_of("speed", [" · ".join(told)] if told else [])
    if training.last_loss is not None or training.losses_not_finite:
        first = f"{training.first_loss:.4g} → " if training.first_loss is not None else ""
        last = f"{training.last_loss:.4g}" if training.last_loss is not None else "not finite"
        steps = f" (not finite in {counted(training.losses_not_finite, 'step')})" if training.losses_not_finite else ""
        lines += rows_of("loss", [first + last + steps])
    return lines + rows_of("memory", [_memory(training)] if training.peak_resident_bytes else [])


MOST_LINES = 4


def _shares_of_step(account: Account, training: MeasuredTraining) -> list[tuple[str, float]]:
    """Return the parts of a step, and in place of what is not measured the lines of the script that take it."""
    parts = [(part, training.share(part)) for part in training.parts if part != REST]
    rest = training.share(REST)
    for each in [each for each in account.lines if each.line.part not in (*PARTS, IN_BACKWARD)][:MOST_LINES]:
        share = min(each.mean, rest)
        rest -= share
        name = f"{each.line.place} {each.line.part or each.line.call}"
        parts += [(name if len(name) <= MOST_NAME else name[: MOST_NAME - 1] + "…", share)] if share else []
    return parts + ([(REST, rest)] if rest > 0.0005 else [])


def _memory(training: MeasuredTraining) -> str:
    words = []
    if training.peak_allocated_bytes is not None and training.peak_reserved_bytes is not None:
        words.append(f"of a device at most {size(training.peak_allocated_bytes)}")
        words.append(f"PyTorch reserved {size(training.peak_reserved_bytes)}")
    words.append(f"of the node at most {size(training.peak_resident_bytes or 0)} for one rank")
    return " · ".join(words)


def _devices(account: Account) -> str:
    mean = sum(each.mean for each in account.devices) / len(account.devices)
    idle = sum(each.most == 0 for each in account.devices)
    least = min(account.devices, key=lambda each: each.mean)
    words = [f"busy {mean:.0f} % of the time", f"{idle} of {len(account.devices)} idle"]
    if len(account.devices) > 1:
        words.append(f"least: device {least.number} on {least.node}, {least.mean:.0f} %")
    return " · ".join(words)


def _failure(attempt: Attempt, recorded: Recorded) -> Iterator[str]:
    rank = f"rank {attempt.rank}: " if attempt.rank >= 0 else ""
    log = f" · {recorded.path}/logs/attempt-{attempt.number}/rank-{attempt.rank}.log" if attempt.rank >= 0 else ""
    error = f": {attempt.error}" if attempt.error else ""
    after = f" after {attempt.num_steps} steps" if attempt.num_steps else ""
    yield f"attempt {attempt.number}: {rank}{attempt.cause}{error}{after}{log}"
    curve = growth.curve(recorded.samples, attempt.number, attempt.rank) if attempt.was_killed else ""
    if curve:
        yield f"host memory of rank {attempt.rank} before it was killed: {curve}"


LEAST_SECONDS = 10.0  # the steps of a shorter run tell nothing
LEAST_LOOKS = 6


def summary_of_run(account: Account) -> str:
    """Return the numbers that are known, such as "1,343 samples/s · 83 % computing · 1 of 8 devices idle"."""
    training = account.training
    if training is None or training.seconds < LEAST_SECONDS:
        return ""
    words = []
    if training.samples_per_second is not None:
        words.append(f"{rate(training.samples_per_second)} samples/s")
    elif account.steps is not None:
        words.append(f"{rate(account.steps.per_second)} steps/s")
    words.append(f"{1 - training.share(DATA, COMMUNICATION, SAVES):.0%} computing")
    looked = [device for device in account.devices if device.looks >= LEAST_LOOKS]
    if looked:
        words.append(f"{sum(device.most == 0 for device in looked)} of {len(looked)} devices idle")
    return " · ".join(words)


_WAITS = {COMMUNICATION: "waiting for other processes", DATA: "waiting for data", SAVES: "saving"}


def paragraph_of_run(recorded: Recorded, account: Account) -> str:
    """Return the sentences that the files of a run support, and no other."""
    sentences = [used(recorded, account)]
    training = account.training
    if training is not None and training.seconds:
        told = [f"{training.share(part):.0%} {what}" for part, what in _WAITS.items() if part in training.parts]
        computing = f"{1 - training.share(*_WAITS):.0%} of the training steps' time was computing"
        sentences.append(", ".join([computing, *told]) + ".")
        if training.samples_per_second is not None:
            sentences.append(f"All processes together computed {rate(training.samples_per_second)} samples a second.")
    if account.devices:
        busy = sum(device.mean for device in account.devices) / len(account.devices)
        idle = sum(device.most == 0 for device in account.devices)
        sentences.append(f"The devices were busy {busy:.0f} % of the time; {idle} of {len(account.devices)} were idle.")
    if account.share(RESTARTS):
        sentences.append(f"Failures cost {account.share(RESTARTS):.1%} of the time.")
    return " ".join(sentences)


def used(recorded: Recorded, account: Account) -> str:
    """Return the sentence of a run's machine, processes, time, energy and bill."""
    machine = recorded.booking.get("machine")
    place = f"On {machine}, a" if machine else "A"
    nodes = counted(account.num_nodes, "node")
    processes = counted(account.num_ranks, "process")
    text = f"{place} training with {processes} on {nodes} took {duration(account.seconds)}"
    if account.num_devices:
        text += f" and {amount(account.device_hours)} GPU hours on {account.num_devices} devices"
    if account.energy_joules is not None:
        text += f", and {amount(account.energy_joules / JOULES_PER_KWH)} kWh of energy in them"
    if account.billed is not None:
        text += f", billed as {cost(account.billed, account.billed_unit)}"
    return text + "."
