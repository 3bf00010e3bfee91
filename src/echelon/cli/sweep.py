"""`echelon sweep`: run a script with many values of its parameters, several runs side by side, and compare them."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from echelon.cli.options import Scanned
from echelon.cli.sweep_options import HELP, asked, opened, question_of, source_of
from echelon.cli.talk import print_json, print_table, say
from echelon.host import Host

if TYPE_CHECKING:
    from echelon.trials.sweep.trial import SweepTrial


def main(arguments: list[str]) -> int:
    scanned = HELP.scan(arguments)
    from echelon.jobs import settings
    from echelon.node.order import CHAIN

    chain = settings.read(os.environ.pop(CHAIN, ""))
    if chain is None:
        return _go(arguments, scanned)
    from echelon.cli.sweep_job import SweepJob

    return SweepJob(chain, arguments, Host(), say).run(lambda: _go(arguments, scanned))


def _go(arguments: list[str], scanned: Scanned) -> int:
    """Begin a sweep, or go on with it."""
    from echelon.trials.sweep import record

    folder = scanned.last.get("resume") or scanned.last.get("out", "")
    goes_on = bool(folder) and os.path.exists(os.path.join(folder, record.NAME))
    with record.held(folder) if goes_on else nullcontext():  # the job before may still write its results
        return _carry_out(*opened(arguments, scanned), is_held=goes_on)


def _carry_out(arguments: list[str], scanned: Scanned, trials: list[SweepTrial], *, is_held: bool) -> int:
    """Run the trials, print the table, draw the picture; return the exit code."""
    from echelon.trials.sweep import loop, record, slots, space, table

    host, values, began = Host(), scanned.last, time.monotonic()
    question = question_of(scanned, arguments)
    source = source_of(question, values, trials)
    places = slots.of(host, asked(values))
    loop.refuse_what_cannot_run(question, places[0], host)
    for parameter in question.parameters:
        if parameter.name not in space.places(question.words):
            say(f"note: no argument has {{{parameter.name}}}; the script can read it from {parameter.variable}")
    with nullcontext() if is_held else record.held(question.folder):
        say(table.beginning(question, source.num_trials, len(places), places[0].num_ranks))
        view = table.SweepView(question, say, host.environ)
        sweep = loop.SweepLoop(question, places, source, trials, host, view, say)
        sweep.run()
    if "json" in values:
        print_json(**record.plain(question, trials))
    else:
        print_table(table.text(question, trials))
    if picture := table.draw(question, trials):
        say(f"the picture is in {picture}")
    for remark in table.remarks(question, trials, time.monotonic() - began):
        say(remark)
    return sweep.exit_code
