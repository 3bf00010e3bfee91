"""`echelon plan`: which partition, nodes, cores and memory a job gets, why, and the cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import date
from functools import partial

from echelon.cli import fits, plan_fit
from echelon.cli.help import Help
from echelon.cli.options import Option, Scanned
from echelon.cli.resources import DEFAULT_MINUTES, RESOURCES, read_machine, read_request, successor, today
from echelon.cli.talk import print_json, print_table, say, say_remarks
from echelon.errors import UsageError
from echelon.host import Host
from echelon.machines.machine import Machine
from echelon.spec import Booking

OPTIONS: tuple[Option, ...] = (
    *RESOURCES,
    *fits.OPTIONS,
    *plan_fit.OPTIONS,
    Option(names=("--why",), help="give the reason for each line, and for every partition that echelon did not choose"),
    Option(names=("--why-not",), value="PARTITION", help="tell why echelon did not choose this partition"),
    Option(names=("--json",), help="as JSON"),
    Option(names=("-h", "--help"), help="show this"),
)
HELP = Help(
    command="plan",
    usage=("[options]", "[options] --fit SCRIPT [args…]"),
    about="Show which partition, nodes, cores and memory a job gets on a machine, why, and what it costs.",
    operands=(Option(names=("SCRIPT",), takes="script"),),
    groups=(("options", OPTIONS),),
    example="echelon plan --machine lumi --gpus 16 --time 12h --why",
)


def main(arguments: list[str]) -> int:
    scanned = _scan(arguments)
    values = scanned.last
    question = plan_fit.read_question(scanned)
    from echelon.plan.book import book
    from echelon.plan.candidates import candidates, choose, why_not

    host = Host()
    machine, how = read_machine(values, host)
    request = read_request(values, host.environ)
    if question is None:
        fits.read_model(values)  # report an invalid command before planning
    day = today()
    booking = book(request, machine, today=day, successor=successor(machine, host))
    judged = candidates(request, machine, day)
    chosen = choose(request, machine, judged)
    if "why_not" in values:
        name = values["why_not"]
        reason = why_not(name, chosen, judged, machine)
        _note_time(values)
        if "json" in values:
            print_json(partition=name, why_not=reason)
        else:
            print(f"{name}: {reason}")
        return 0
    is_taken = partial(_is_taken, host=host, machine=machine, day=day)
    fit: fits.StrategiesAnswer | plan_fit.PlanAnswer | None
    if question is None:
        fit = fits.answer(booking, chosen, values, is_taken)
    else:
        fit = plan_fit.answer(question, booking, chosen, values, host, is_taken)
    _note_time(values)
    against = {
        candidate.partition.name: why_not(candidate.partition.name, chosen, judged, machine)
        for candidate in judged
        if candidate is not chosen
    }
    if "json" in values:
        memory = {"memory": fit.as_data()} if fit is not None else {}
        print_json(**asdict(booking), against=against, **memory)
        return 0
    say_remarks(booking)
    print_booking(booking, how, with_reasons="why" in values)
    for name in against if "why" in values else ():
        print_table(f"not {name}: {against[name]}")
    if fit is not None:
        fit.print()
    if "parameters" in values:
        say("note: activations count too, and echelon fit train.py, or echelon plan --fit train.py, knows them")
    return 0


def _scan(arguments: list[str]) -> Scanned:
    scanned = HELP.scan(arguments)
    if "fit" in scanned.values:
        return scanned
    scanned = HELP.scan_all(arguments)
    if scanned.rest and "fit" in scanned.values:
        raise UsageError(
            f"--fit stands before the script, but after {scanned.rest[0]} it is an option of the script",
            hint=f"echelon plan --fit {scanned.rest[0]}",
        )
    if scanned.rest:
        raise UsageError(
            f"echelon plan takes only options, and {scanned.rest[0]!r} is not an option",
            hint="echelon plan --gpus 8   or with a script: echelon submit --gpus 8 --time 1:00:00 train.py",
        )
    return scanned


def _note_time(values: Mapping[str, str]) -> None:
    if "time" not in values:
        say(f"note: no --time, so the plan is for {DEFAULT_MINUTES // 60} hour")


def _is_taken(values: Mapping[str, str], *, host: Host, machine: Machine, day: date) -> bool:
    from echelon.plan.book import book

    try:
        book(read_request(values, host.environ), machine, today=day)
    except UsageError:
        return False
    return True


def print_booking(booking: Booking, how: str, *, with_reasons: bool) -> None:
    reasons = booking.reasons
    name_width = max(len(reason.what) for reason in reasons)
    value = max(len(reason.value) for reason in reasons)
    for reason in reasons:
        why = how if reason.what == "machine" and not with_reasons else reason.why
        line = f"{reason.what:<{name_width}}  {reason.value:<{value}}"
        print_table(f"{line}  {why}" if with_reasons or reason.what == "machine" else line.rstrip())
    if booking.batch_per_rank:
        print(f"{'batch per rank':<{name_width}}  {booking.batch_per_rank}")
    if not with_reasons:
        return
    print("\nenvironment of each rank (your own value of a name always wins):")
    for variable in booking.variables:
        print_table(f"  {variable.name}={variable.value}\n      {variable.why}")
