"""`echelon lint`: mistakes in batch scripts and training scripts, found by reading them."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import echelon
from echelon.cli.help import Help
from echelon.cli.options import Option
from echelon.cli.resources import machine_names, today
from echelon.cli.shared_disk import folder_note
from echelon.cli.talk import say
from echelon.environment import regular_files
from echelon.errors import UsageError
from echelon.host import Host, terminal
from echelon.units import counted

if TYPE_CHECKING:
    from echelon.lint.run import Linted

FORMATS = ("text", "json", "sarif", "github")


def _rules() -> tuple[str, ...]:
    from echelon.lint import pages

    return tuple(pages.all_pages())


OPTIONS: tuple[Option, ...] = (
    Option(names=("--machine",), value="NAME", choices=machine_names,
           help="the machine that the jobs are for (default: the machine you are on)"),
    Option(names=("--strict",), help="exit with code 1 for warnings too"),
    Option(names=("--format",), value="HOW", choices=FORMATS,
           help="text, json, sarif (code hosts, editors) or github (annotations)"),
    Option(names=("--json",), help="the same as --format json"),
    Option(names=("--fix",), help="repair what is certain: show the difference, and write the files"),
    Option(names=("--diff",), help="show the difference that --fix would write, and write nothing"),
    Option(names=("--list",), help="list every rule, one a line"),
    Option(names=("--explain",), value="ID", choices=_rules,
           help="show the page of one rule: reason, source, a bad and a good example"),
    Option(names=("-h", "--help"), help="show this"),
)  # fmt: skip
STANDARD_INPUT = "standard input"
HELP = Help(
    command="lint",
    usage=("[options] FILE…", "--fix FILE…"),
    about="Find mistakes in batch scripts, training scripts and settings (JSON, YAML) by reading them; - is stdin.\n"
    "Give files that belong together in one call: echelon compares the request of a job with its script.\n"
    "Exit code 0: no error; 1: an error was found; 2: a file or an option is wrong.",
    operands=(Option(names=("FILE",), takes="file"),),
    groups=(("options", OPTIONS),),
    example="echelon lint --machine lumi job.sh train.py",
)


def main(arguments: list[str]) -> int:
    scanned = HELP.scan_all(arguments)
    values = scanned.last
    files = list(dict.fromkeys(scanned.rest))
    from echelon.lint import pages, report

    if "explain" in values:
        print(report.explanation(pages.find(values["explain"])), end="")
        return 0
    if "list" in values:
        print(report.listing(pages.all_pages()), end="")
        return 0
    if not files:
        raise UsageError("echelon lint needs a file", hint="echelon lint train.py job.sh")
    form = values.get("format", "json" if "json" in values else "text")
    if form not in FORMATS:
        raise UsageError(f"--format {form}: the choices are {', '.join(FORMATS)}", hint="--format sarif")
    if "json" in values and form != "json":
        raise UsageError(f"--json and --format {form} are two formats", hint=f"--format {form}")
    _refuse_contradictions(files, values)
    sources = {(STANDARD_INPUT if name == "-" else name): _read(name) for name in files}
    look, known = _linter(files, values)
    look = partial(look, beside=_beside(sources))
    if "fix" not in values and "diff" not in values:
        linted, would_change = look(sources), False
    else:
        linted, would_change = make(sources, look, writes="diff" not in values, shows=form == "text")
    if known and not linted.machines:
        say(
            "note: echelon does not know this machine, so it does not check limits: --machine NAME "
            f"({', '.join(known)})"
        )
    if "diff" not in values:
        print(_written(linted, form, num_files=len(files)), end="")
    failing = ("error", "warning") if "strict" in values else ("error",)
    return 1 if would_change or any(finding.severity in failing for finding in linted.findings) else 0


def _refuse_contradictions(files: list[str], values: dict[str, str]) -> None:
    if "diff" in values and (formats := [name for name in ("json", "format") if name in values]):
        raise UsageError(
            f"--diff prints a difference, but --{formats[0]} prints findings", hint=f"remove --{formats[0]} or --diff"
        )
    if "fix" in values and "diff" not in values and "-" in files:
        raise UsageError("--fix writes files, but standard input is not a file", hint="echelon lint --diff -")


def _written(linted: Linted, form: str, *, num_files: int) -> str:
    from echelon.lint import pages, report

    if form == "json":
        return report.as_json(linted) + "\n"
    if form == "sarif":
        return report.sarif(linted, pages.all_pages(), echelon.__version__) + "\n"
    if form == "github":
        return report.github(linted)

    with_colour = terminal.has_colour(sys.stdout, os.environ)
    text = report.text(linted, num_files=num_files, with_colour=with_colour)
    return terminal.for_person(text, sys.stdout) if terminal.is_terminal(sys.stdout) else text


def _linter(files: list[str], values: dict[str, str]) -> tuple[Callable[..., Linted], tuple[str, ...]]:
    """Return the function that lints the files, and the names of the machines that it tries if none is given."""
    from echelon.lint.run import lint
    from echelon.machines import detect, load

    host = Host()
    linter = partial(lint, today=today(), folder_note=folder_note)
    if "machine" in values:
        return partial(linter, machine=load.find(values["machine"], host.environ)), ()
    if all(name.endswith((".py", ".json", ".yaml", ".yml")) for name in files):
        return linter, ()  # these files do not depend on the machine
    machine = detect.here(host)
    machines = {} if machine is not None else load.load_all(host.environ)
    return partial(linter, machine=machine, machines=machines), tuple(machines)


def _beside(sources: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return files that scripts call and that lie beside them: rules read them, but report nothing about them."""
    from echelon.lint.executed_commands import MOST_BYTES, called

    texts: dict[str, bytes] = {}
    for path, source in sources.items():
        is_shell = not path.endswith((".py", ".pyw", ".json", ".yaml", ".yml")) and len(source) <= MOST_BYTES
        for name in called(source.decode("utf-8", "replace")) if is_shell else ():
            for folder in dict.fromkeys((os.path.dirname(path), "")):
                beside = os.path.normpath(os.path.join(folder, name))
                if beside in sources or beside in texts or not os.path.isfile(beside):
                    continue
                with contextlib.suppress(OSError):
                    text = regular_files.read(beside, most_bytes=MOST_BYTES)
                    if b"\0" not in text:
                        texts[beside] = text
    return texts


def _read(name: str) -> bytes:
    try:
        return regular_files.read_stream(sys.stdin.buffer) if name == "-" else regular_files.read(name)
    except IsADirectoryError:
        raise UsageError(
            f"{name} is a folder", hint=f"echelon lint {name.rstrip('/')}/*.sh {name.rstrip('/')}/*.py"
        ) from None
    except OSError as error:
        raise UsageError(f"echelon cannot read {name}: {error.strerror}", hint="echelon lint train.py job.sh") from None


def make(
    sources: Mapping[str, bytes], look: Callable[[Mapping[str, bytes]], Linted], *, writes: bool, shows: bool
) -> tuple[Linted, bool]:
    """Show and write the repairs; return the remaining findings, and whether --fix would repair something.

    With `shows` the diff goes to standard output; without it to standard error, beside other data.
    """
    from echelon.lint.repair import difference, repair

    repaired = repair(sources, look)
    changed = [path for path in sources if repaired.sources[path] != sources[path]]
    text = difference(sources, repaired.sources)
    stream = sys.stdout if shows else sys.stderr
    stream.write(text)
    stream.flush()  # print the diff first, even if a write fails
    if writes:
        for path in changed:
            write(path, repaired.sources[path])
        if changed and shows:
            print()
    counts = Counter(finding.code for finding in repaired.findings)
    codes = ", ".join(f"{code}{f' × {count}' if count > 1 else ''}" for code, count in sorted(counts.items()))
    some = counted(len(repaired.findings), "repair")
    if not counts:
        say("no repair is certain")
    elif writes:
        say(f"{some}: {codes}")
    else:
        say(f"{some} for --fix: {codes}")
    return repaired.left, bool(changed) and not writes


def write(path: str, source: bytes) -> None:
    """Replace a file atomically and keep its mode; follow a symbolic link to its target."""
    target = os.path.realpath(path)
    fresh = f"{target}.echelon-{os.getpid()}"
    try:
        with open(target, "r+b"):
            pass  # a file that may not be written is not replaced either
        try:
            with open(fresh, "xb") as file:
                file.write(source)
            shutil.copymode(target, fresh)
            os.replace(fresh, target)
        finally:
            if os.path.exists(fresh):
                os.unlink(fresh)
    except OSError as error:
        raise UsageError(
            f"echelon cannot write {path}: {error.strerror}", hint=f"echelon lint --diff {path} > repairs.diff"
        ) from None
