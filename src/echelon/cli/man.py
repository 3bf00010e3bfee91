"""`echelon man`: the manual page, echelon(1), from the rows of every `--help`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import echelon
from echelon.cli import help as helps
from echelon.cli.help import IGNORED, Help
from echelon.cli.options import Option
from echelon.errors import UsageError
from echelon.scheduler.slurm.allocation import PROGRAMS

OPTIONS: tuple[Option, ...] = (Option(names=("-h", "--help"), help="show this"),)
HELP = Help(
    command="man",
    usage=("",),
    about="Print the manual page, echelon(1), as man reads it.\n"
    "man echelon shows the same page where pip has installed echelon, and its programs are in PATH.",
    groups=(("options", OPTIONS),),
    example="echelon man | man -l -",
)

EXIT_STATUS = (
    ("0", "All is well: every rank ended with 0; nothing wrong was found."),
    ("1", "A check, a comparison or lint has found an error; or a rank ended with an exception."),
    ("2", "The command line, a file or the allocation is wrong: nothing was started; or a script cannot be scaled."),
    ("75", "The run hung: see --hang-timeout."),
    ("124", "--timeout or --time has passed."),
    ("127", "A rank could not be started."),
    ("128 + N", "Signal N ended the rank that failed first, or the run: 130 is Ctrl-C, 137 SIGKILL, 143 SIGTERM."),
    ("other", "The exit code of the rank that failed first."),
)
ENVIRONMENT = (
    ("ECHELON_CHECK", "What echelon run checks where --check does not say it: fast, full or off."),
    ("ECHELON_MACHINE", "The name of the machine where you are, if echelon cannot recognise it."),
    ("ECHELON_MACHINES", "Folders and files with descriptions of machines, separated by colons."),
    ("ECHELON_SSH", "The program that reaches the hosts of --hosts, with its options; without it, ssh."),
    ("ECHELON_TRACEBACK", "If it is 1, a mistake in echelon itself is shown with its traceback."),
    ("NO_COLOR", "If it is set and not empty, messages have no colours."),
    ("XDG_CACHE_HOME, XDG_CONFIG_HOME", "What stands in place of ~/.cache and ~/.config below FILES."),
)
FILES = (
    ("echelon-runs/", "The run directories of this folder: plan, events, logs, report."),
    ("~/.config/echelon/machines/*.toml", "Your own descriptions of machines."),
    ("~/.cache/echelon/", "What is sent to compute nodes, packed once."),
)
SEE_ALSO = (("python3", 1), *((program, 1) for program in PROGRAMS))


def main(arguments: list[str]) -> int:
    scanned = HELP.scan_all(arguments)
    if scanned.rest:
        raise UsageError(
            f"there is one page, of all commands, and none of {scanned.rest[0]!r}", hint="echelon man | man -l -"
        )
    print(page(helps.of_all()), end="")
    return 0


def page(commands: Iterable[Help]) -> str:
    commands = list(commands)
    lines = [
        f'.TH ECHELON 1 "" "echelon {echelon.__version__}" "User Commands"',
        ".ad l",
        ".nh",  # a hyphenated word cannot be pasted
        ".SH NAME",
        "echelon \\- take a training script from one GPU to a whole supercomputer",
        ".SH SYNOPSIS",
        ".nf",
        *(line for command in commands for line in _usage(command)),
        ".fi",
        ".SH DESCRIPTION",
        _plain(
            "echelon starts a PyTorch script for one device on all devices of a machine or of a Slurm allocation, and "
            "compares the training with that of one device. It knows machines: partitions, nodes, cores, prices."
        ),
        ".PP",
        "Each command has its own help:",
        f".B echelon {_plain('COMMAND')} {_plain('--help')}",
        ".SH COMMANDS",
        *(line for command in commands for line in _command(command)),
    ]
    for title, rows in (("EXIT STATUS", EXIT_STATUS), ("ENVIRONMENT", ENVIRONMENT), ("FILES", FILES)):
        lines += [f".SH {title}", *(line for name, text in rows for line in _row(_bold(name), text))]
    lines += [".SH EXAMPLES", ".EX", *(_plain(command.example) for command in commands), ".EE"]
    pages = [f".BR {name} ({section})" for name, section in SEE_ALSO]
    return "\n".join([*lines, ".SH SEE ALSO", *(f"{page}," for page in pages[:-1]), pages[-1], ""])


def _usage(command: Help) -> Iterator[str]:
    for usage in command.usage:
        yield f".B echelon {command.command}"
        if usage:
            yield _plain(usage)


def _command(command: Help) -> Iterator[str]:
    yield f".SS echelon {command.command}"
    yield "\n.PP\n".join(map(_plain, command.about.split("\n")))
    for operand in command.operands:
        if operand.help:
            yield from _option(operand)
    for title, options in command.groups:
        if len(command.groups) > 1:
            yield from (".PP", f"{_plain(title[:1].upper() + title[1:])}:")
        for option in options:
            yield from () if option.no_meaning else _option(option)
    if command.ignored:
        yield from (".PP", _plain(IGNORED[:1].upper() + IGNORED[1:]))
        yield _plain(", ".join(name for option in command.ignored for name in option.names) + ".")
    for paragraph in command.after.split("\n") if command.after else ():
        yield from (".PP", _plain(paragraph))


def _option(option: Option) -> Iterator[str]:
    names = ", ".join(_bold(name) for name in option.names)
    yield from _row(names + (f" \\fI{_plain(option.value)}\\fR" if option.value else ""), option.help)


def _row(term: str, meaning: str) -> Iterator[str]:
    yield from (".TP", term, _plain(meaning))


def _bold(text: str) -> str:
    return f"\\fB{_plain(text)}\\fR"


def _plain(text: str) -> str:
    """Escape a text for troff, so that it is shown and pasted as written."""
    marked = text.replace("\\", "\\(rs").replace("-", "\\-")
    ascii_only = "".join(letter if ord(letter) < 128 else f"\\[u{ord(letter):04X}]" for letter in marked)
    return f"\\&{ascii_only}" if ascii_only.startswith((".", "'")) else ascii_only
