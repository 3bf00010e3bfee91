"""`echelon profile`: record some steps of some ranks, or read traces, and say what the steps wait for."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from echelon.cli.help import Help
from echelon.cli.options import OPTIONS as RUN_OPTIONS
from echelon.cli.options import Option, Scanned, scan_all
from echelon.cli.readers import one_of
from echelon.cli.talk import print_table, say
from echelon.errors import EchelonError, UsageError
from echelon.host import Host
from echelon.launch import profilers
from echelon.launch.profilers import NAMES, TOOLS, TORCH
from echelon.orders import profile
from echelon.orders.scale import AUTO_FIT
from echelon.units import counted

if TYPE_CHECKING:
    from echelon.monitor.traces.verdict import TraceVerdict
    from echelon.spec import Plan
    from echelon.trials.candidates import Trials

FIRST, LAST = 10, 15
MOST_RANKS = 1 << 20
TIMED_OUT = 124
_NOT_TRIED = (
    "help", "json", "dry_run", "explain_hooks", "run_dir", "show", "debug", "tee", "check", "exclude_bad", "scale",
    "checkpoint_every", "keep_checkpoints", "resume", "max_restarts",
)  # fmt: skip
"""Options that a trial leaves out: it shows nothing, and saves nothing."""
_JSON = Option(names=("--json",), help="print the verdict as JSON; with --dry-run the plan")
_HELP = Option(names=("-h", "--help"), help="show this")
_READ = Option(names=("--read",), help="judge these traces, which torch.profiler wrote: .json or .json.gz")
OWN: tuple[Option, ...] = (
    Option(names=("--ranks",), value="RANKS", choices=("0", "all"), help="which ranks: 0 (default), 0,17, 4-7 or all"),
    Option(names=("--steps",), value="N..M", help="which steps, for --tool torch (default: 10..15)"),
    Option(names=("--tool",), value="TOOL", choices=NAMES, help="torch (default), rocprof, nsys or py-spy"),
    Option(names=("--try",), help="then run 50 steps with each change that may help, and print their times"),
    _READ,
    _JSON,
    _HELP,
)  # fmt: skip
_OF_RUN = tuple(option for option in RUN_OPTIONS if option.key not in ("json", "help"))
OPTIONS: tuple[Option, ...] = (*OWN, *_OF_RUN)
HELP = Help(
    command="profile",
    usage=("[options] SCRIPT [args…]", "--read [--json] TRACE…"),
    about="Run a script as echelon run does, record some steps of some ranks, and say what these steps wait for:\n"
    "input, compute, communication, the optimizer, launches, copies or nothing.\n"
    "With --read, judge traces that were made elsewhere. Of several ranks it names the one that makes others wait.",
    operands=(Option(names=("SCRIPT",), takes="script"),),
    groups=(("options", OWN), ("as in echelon run", _OF_RUN)),
    example="echelon profile --ranks 0,1 -n 2 train.py",
)


def main(arguments: list[str]) -> int:
    scanned = HELP.scan(arguments)
    if "read" in scanned.values:
        read = scan_all(arguments, (_READ, _JSON, _HELP), command="profile")
        if not read.rest:
            raise UsageError("--read names no trace", hint="echelon profile --read trace.json.gz")
        judge(read.rest, as_json="json" in read.values)
        return 0
    return _run(scanned)


def judge(
    paths: Sequence[str],
    *,
    as_json: bool,
    where: Sequence[str] = (),
    more: Callable[[list[TraceVerdict]], Trials | None] = lambda _: None,
) -> None:
    """Print the verdict on traces, sentences on the script's lines, and the trials that `more` makes.

    Raise UsageError for a file that is no trace.
    """
    from echelon.monitor.traces import report, verdict

    verdicts = [verdict.of(path) for path in paths]
    if not as_json:
        print_table(report.text(verdicts, where))
        sys.stdout.flush()  # trials take a while, and say so on the other stream
    trials = more(verdicts)
    if as_json:
        tried = {"tried": trials.as_plain()} if trials is not None else {}
        lines = {"where": list(where)} if where else {}
        print(json.dumps({**report.as_plain(verdicts), **lines, **tried}, indent=1))
    elif trials is not None:
        print_table(trials.text())


def _run(scanned: Scanned) -> int:
    from echelon.cli import run

    values = scanned.last
    _refuse_trace(scanned)
    tool, order = _tool(values), _order(values)
    plans: list[Plan] = []

    def settle(plan: Plan) -> Plan:
        if "try" in values and plan.where == "meet":
            raise UsageError(
                "--try starts several runs, and here each node is started by hand for one", hint="remove --try"
            )
        plans.append(profilers.ordered(plan, order, tool))
        return plans[-1]

    exit_code = run.carry_out(_of_run(scanned, tool), settle)
    if not plans or "dry_run" in values or plans[0].node_rank > 0:
        return exit_code
    directory = plans[0].run_directory
    profiles, missing = _found(directory, order)
    if profiles and tool == TORCH:
        from echelon.monitor import account, recorded, report

        judge(
            [path for paths in profiles.values() for path in paths],
            as_json="json" in values,
            where=report.where(account.of_run(recorded.read(directory))),
            more=lambda verdicts: _tried(scanned, plans[0], verdicts) if exit_code in (0, TIMED_OUT) else None,
        )
    elif profiles:
        _name_files(profiles, tool)
    if missing:
        raise _no_profile(directory, missing, order, tool)
    return exit_code


def _tried(scanned: Scanned, plan: Plan, verdicts: list[TraceVerdict]) -> Trials | None:
    """Try what may shorten the steps, if the user asked for it; else name it."""
    from echelon.monitor import account, recorded
    from echelon.trials import candidates

    record = recorded.read(plan.run_directory)
    chosen = candidates.candidates(verdicts, record, account.of_run(record))
    if "try" not in scanned.values:
        if chosen and not scanned.is_program:
            say(f"--try measures what changes with {', '.join(candidate.name for candidate in chosen)}")
        return None
    if not chosen:
        say("--try: nothing to try: the steps wait little for data or other ranks, or run accepts no option against it")
        return None
    options = [option for option in RUN_OPTIONS if option.key not in _NOT_TRIED and not option.no_meaning]
    is_module, is_own = "module" in scanned.values, plan.scale_options is None
    scale = scanned.values.get("scale", ["auto"])[-1]
    words = [*scanned.words(options), "--scale", plan.scale if is_own or scale == AUTO_FIT else scale]
    return candidates.measure(
        candidates.question(scanned.rest, words, is_module=is_module, is_own=is_own), chosen, Host(), say
    )


def _refuse_trace(scanned: Scanned) -> None:
    target = scanned.rest[0] if scanned.rest else ""
    if target.endswith((".json", ".json.gz")):
        raise UsageError(f"{target} is no script; a trace is read with --read", hint=f"echelon profile --read {target}")
    if not scanned.rest:
        raise UsageError("the command line has no script", hint="echelon profile -n 2 train.py")
    if "try" in scanned.values and scanned.is_program:
        raise UsageError(f"--try is for a script, and {target} starts one", hint="echelon profile --try -n 2 train.py")


def _tool(values: dict[str, str]) -> str:
    tool = one_of(values.get("tool", TORCH), "--tool", NAMES)
    if tool != TORCH and "try" in values:
        raise UsageError(f"--try is for --tool torch: {tool} gives no verdict", hint="remove --try")
    if tool != TORCH and "steps" in values:
        raise UsageError(f"--steps is for --tool torch: {tool} records the whole run", hint="remove --steps")
    if tool != TORCH and values.get("launch", "exec") != "exec":
        raise UsageError(
            f"--launch {values['launch']}: {tool} must start its ranks, each as a process of its own",
            hint="remove --launch",
        )
    return tool


def _order(values: dict[str, str]) -> profile.ProfileOrder:
    text = values.get("steps", f"{FIRST}..{LAST}")
    match = re.fullmatch(r"([0-9]{1,9})(?:\.\.([0-9]{1,9}))?", text)
    first, last = (int(match.group(1)), int(match.group(2) or match.group(1))) if match else (0, 0)
    least = profile.LEAST_STEP
    if match and 0 < first < least <= last:
        raise UsageError(
            f"--steps {text}: a profile begins with the end of a step, so the first step cannot be in it",
            hint=f"--steps {least}..{last}",
        )
    if not least <= first <= last:
        raise UsageError(
            f"--steps {text or repr('')}: give the first and the last step, from {least} on",
            hint=f"--steps {FIRST}..{LAST}",
        )
    return profile.ProfileOrder(_ranks(values.get("ranks", "0")), first, last)


def _ranks(text: str) -> profile.Ranges:
    if text == "all":
        return ((0, -1),)  # up to the last rank, which the plan knows
    ranges = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,7})(?:-([0-9]{1,7}))?", part)
        low, high = (int(match.group(1)), int(match.group(2) or match.group(1))) if match else (1, 0)
        if not low <= high <= MOST_RANKS:
            raise UsageError(f"--ranks {text or repr('')}: give ranks, or all", hint="echelon profile --ranks 0,4-7 …")
        ranges.append((low, high))
    return tuple(ranges)


def _of_run(scanned: Scanned, tool: str) -> Scanned:
    """Return what `echelon run` reads of the command line."""
    keys = {option.key for option in RUN_OPTIONS}
    values = {key: list(found) for key, found in scanned.values.items() if key in keys}
    if tool != TORCH:
        values["launch"] = ["exec"]
    if "json" in values and not {"dry_run", "explain_hooks"} & values.keys():
        del values["json"]
        values.setdefault("show", ["none"])  # stdout has the verdict alone
    return Scanned(values=values, rest=scanned.rest, is_program=scanned.is_program)


def _found(directory: str, order: profile.ProfileOrder) -> tuple[dict[int, list[str]], list[int]]:
    """Return the files of the profiled ranks, and the ranks without one."""
    files = {rank: profilers.files(directory, rank) for rank in _each(order, _num_ranks(directory))}
    return {rank: paths for rank, paths in files.items() if paths}, [rank for rank, paths in files.items() if not paths]


def _num_ranks(directory: str) -> int:
    from echelon.monitor import recorded

    sizes = [event.get("ranks") for event in recorded.read(directory).events if event["event"] == "attempt"]
    return max((size for size in sizes if isinstance(size, int)), default=0)


def _each(order: profile.ProfileOrder, num_ranks: int) -> Iterator[int]:
    """Yield the ranks of an order, also those that the run did not have."""
    seen: set[int] = set()
    for low, high in order.ranks:
        for rank in range(low, (high if high >= 0 else num_ranks - 1) + 1):
            if rank not in seen:
                seen.add(rank)
                yield rank


def _name_files(found: dict[int, list[str]], tool: str) -> None:
    for rank, paths in found.items():
        for path in paths:
            print(f"rank {rank}: {os.path.relpath(path)}")
    say(TOOLS[tool].how_to_see)


def _no_profile(directory: str, missing: list[int], order: profile.ProfileOrder, tool: str) -> EchelonError:
    """Return the error for ranks that have no profile, with the reason that the run's events give."""
    from echelon.monitor import recorded

    events = recorded.read(directory).events
    made = {event.get("rank"): event.get("steps") for event in events if event["event"] == "exit"}
    rank = missing[0]
    several = f"ranks {', '.join(map(str, missing[:8]))}{' …' if len(missing) > 8 else ''} have no profile"
    who = several if len(missing) > 1 else f"rank {rank} has no profile"
    num_ranks, steps = _num_ranks(directory), made.get(rank)
    log = os.path.relpath(os.path.join(directory, "logs"))
    if rank >= num_ranks:
        return EchelonError(f"{who}: this run had {num_ranks} ranks", hint=f"--ranks {max(num_ranks - 1, 0)}")
    if tool != TORCH:
        return EchelonError(f"{who}: {tool} wrote no file", hint=f"its output is in {log}")
    if isinstance(steps, int) and steps < order.first:
        number = f"{counted(steps, 'step')} of an optimizer"
        last = min(steps, order.last)
        hint = f"--steps {profile.LEAST_STEP}..{last}" if last >= profile.LEAST_STEP else "train for more steps"
        return EchelonError(f"{who}: it made {number}, and the profile begins with step {order.first}", hint=hint)
    if steps is None:
        return EchelonError(
            f"{who}: it made no step of an optimizer of PyTorch", hint=f"echelon profile --tool py-spy …   or see {log}"
        )
    return EchelonError(f"{who}: it ended before it wrote one", hint=f"its output is in {log}")
