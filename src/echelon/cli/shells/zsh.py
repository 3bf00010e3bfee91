"""The completion of zsh: its own `_arguments`, with the meaning of each option."""

from __future__ import annotations

import re
from collections.abc import Sequence

from echelon.cli.help import Help
from echelon.cli.options import Option
from echelon.cli.shells import filled, kind

SCRIPT = r"""#compdef echelon
# zsh completes echelon; written by: echelon completion zsh

_echelon_runs() {  # the runs of this folder, by the names that `echelon runs` shows
    local folder
    local -a names
    for folder in @runs@/*(N/); do
        [[ -e $folder/events.jsonl || -e $folder/job.sh ]] || continue
        if [[ ${folder:t} =~ '^@stamp@(.+)$' ]]; then names+=($match[1]); else names+=(${folder:t}); fi
    done
    compadd -a names
}

_echelon() {
    local curcontext=$curcontext state
    local -a line commands
    commands=(
@commands@
    )
    _arguments -C '(- *)'{-h,--help}'[show the commands]' '(- *)--version[show the version]' \
        '1:command:->command' '*::argument:->arguments'
    case $state in
        command) _describe command commands ;;
        arguments)
            curcontext=${curcontext%:*:*}:echelon-$words[1]:
            case $words[1] in
@arguments@
            esac
            ;;
    esac
}

# in a folder of $fpath this file is the function; after `source` the function is named
if [[ $funcstack[1] == _echelon ]]; then _echelon "$@"; else compdef _echelon echelon; fi
"""
ACTIONS = {
    "file": "_files", "folder": "_files -/", "script": '_files -g "*.py"', "program": "_command_names -e",
    "run": "_echelon_runs", "other": "",
}  # fmt: skip


def script(commands: Sequence[Help]) -> str:
    from echelon.cli import COMMANDS

    rows = (f"        {_quoted(f'{command.command}:{COMMANDS[command.command]}')}" for command in commands)
    return filled(SCRIPT, commands="\n".join(rows), arguments="\n".join(_case(command) for command in commands))


def _case(command: Help) -> str:
    specs = [spec for option in command.offered for spec in _specs(option)]
    operand = command.operands[0].names[0] if command.operands else ""
    if command.passes_arguments:
        specs += [_quoted(f"1:{operand}:{_action(command.operands)}"), _quoted("*::argument:_files")]
    elif operand:
        specs.append(_quoted(f"*:{operand}:{_action(command.operands)}"))
    stops = " -A '-*'" if command.passes_arguments else ""
    lines = " \\\n                    ".join([f"_arguments -s -S{stops}", *specs])
    return f"                {command.command}) {lines} ;;"


def _specs(option: Option) -> list[str]:
    """Return an `_arguments` specification for each spelling of an option; options may be repeated."""
    meaning = re.sub(r"([\[\]\\:])", r"\\\1", option.help)
    specs = []
    for name in option.names:
        if not option.value:
            specs.append(_quoted(f"*{name}[{meaning}]"))
            continue
        joins = "=" if name.startswith("--") else "+"
        value = option.value.replace(":", r"\:")
        specs.append(_quoted(f"*{name}{joins}[{meaning}]:{value}:{_action([option])}"))
    return specs


def _action(rows: Sequence[Option]) -> str:
    value_kind, _, words = kind(rows).partition(" ")
    return f" _sequence compadd - {words}" if value_kind == "list" else ACTIONS.get(value_kind, f"({words})")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", r"'\''") + "'"
