"""The completion of fish: one line for each option, with its meaning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from echelon.cli.help import Help
from echelon.cli.options import Option
from echelon.cli.shells import filled, kind

SCRIPT = r"""# fish completes echelon; written by: echelon completion fish

function __echelon_at --argument-names command place
    # whether the cursor stands behind COMMAND: among its options, or behind its script or program
    set -l words (commandline -opc)
    test "$words[2]" = "$command"; or return
    set -l valued
    switch $command
@valued@
        case '*'
            test "$place" = options
            return
    end
    set -l open no
    for word in $words[3..]
        if test $open = yes
            set open no
        else if contains -- $word $valued
            set open yes
        else if test "$word" = -- ; or not string match --quiet -- '-*' $word
            test "$place" = arguments
            return
        end
    end
    test "$place" = options
end

function __echelon_runs
    # the runs of this folder, by the names that `echelon runs` shows
    for path in @runs@/*/
        if test -e $path/events.jsonl -o -e $path/job.sh
            string replace --regex '^@stamp@' '' (basename $path)
        end
    end
end

complete --command echelon --no-files
complete --command echelon --condition __fish_use_subcommand --short h --long help --description 'show the commands'
complete --command echelon --condition __fish_use_subcommand --long version --description 'show the version'
@commands@
"""
VALUES = {
    "file": "--require-parameter --force-files",
    "folder": "--exclusive --arguments '(__fish_complete_directories)'",
    "script": "--exclusive --arguments '(__fish_complete_suffix .py)'",
    "program": "--exclusive --arguments '(__fish_complete_command)'",
    "run": "--exclusive --arguments '(__echelon_runs)'",
    "other": "--exclusive",
}


def script(commands: Sequence[Help]) -> str:
    lines = [line for command in commands for line in _lines(command)]
    valued = [line for command in commands if command.passes_arguments for line in _case(command)]
    return filled(SCRIPT, valued="\n".join(valued), commands="\n".join(lines))


def _case(command: Help) -> list[str]:
    names = [name for option in command.options if option.value for name in option.names]
    return [f"        case {command.command}", f"            set valued {' '.join(names)}"]


def _lines(command: Help) -> Iterator[str]:
    from echelon.cli import COMMANDS

    name = command.command
    yield (
        f"complete --command echelon --condition __fish_use_subcommand --arguments {name}"
        f" --description {_quoted(COMMANDS[name])}"
    )
    at = f"complete --command echelon --condition '__echelon_at {name} options'"
    for option in command.offered:
        names = (f"--{'long' if word.startswith('--') else 'short'} {word.lstrip('-')}" for word in option.names)
        value = f"{_value([option])} " if option.value else ""
        yield f"{at} {' '.join(names)} {value}--description {_quoted(option.help)}"
    if command.operands:
        yield f"{at} {_value(command.operands).replace('--require-parameter ', '').replace('--exclusive', '').strip()}"
    if command.passes_arguments:
        yield f"complete --command echelon --condition '__echelon_at {name} arguments' --force-files"


def _value(rows: Sequence[Option]) -> str:
    value_kind, _, words = kind(rows).partition(" ")
    if value_kind == "list":
        offered = "\\n".join(words.split(" "))
        return f"--exclusive --arguments '(__fish_complete_list , \"printf \\'{offered}\\n\\'\")'"
    return VALUES.get(value_kind, f"--exclusive --arguments '{words}'")


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
