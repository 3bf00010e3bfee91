"""The completion of bash: a function that reads the line, and tables of the options."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from echelon.cli.help import Help
from echelon.cli.shells import filled, kind

SCRIPT = r"""# bash completes echelon; written by: echelon completion bash

_echelon_command() {  # what COMMAND takes
    case $1 in
@commands@
        *) return 1 ;;
    esac
}

_echelon_value() {  # what the value of an OPTION of COMMAND is
    case "$1 $2" in
@values@
        *) kind=other ;;
    esac
}

_echelon_runs() {  # the runs of this folder, by the names that `echelon runs` shows
    local path name
    for path in @runs@/*/; do
        [[ -e ${path}events.jsonl || -e ${path}job.sh ]] || continue
        name=${path#*/} name=${name%/}
        [[ $name =~ ^@stamp@(.+)$ ]] && name=${BASH_REMATCH[1]}
        [[ $name == "$word"* ]] && printf '%s\n' "$name"
    done
}

_echelon_offer() {  # offer what begins with the word, as its kind says
    local offered= line before=
    case $kind in
        file) return ;;  # bash completes files by itself, where nothing is offered
        script | folder | run) compopt -o filenames 2>/dev/null ;;
    esac
    case $kind in
        script | folder | program) ;;  # and where nothing fits, bash tries files
        *) compopt +o default +o bashdefault 2>/dev/null ;;
    esac
    case $kind in
        script) offered=$(compgen -f -X '!*.py' -- "$word"; compgen -d -- "$word") ;;
        folder) offered=$(compgen -d -- "$word") ;;
        program) offered=$(compgen -c -- "$word") ;;
        run) offered=$(_echelon_runs) ;;
        list\ *)
            [[ $word == *,* ]] && before=${word%,*},
            offered=$(compgen -P "$before" -W "${kind#* }" -- "${word#"$before"}")
            ;;
        words\ *) offered=$(compgen -W "${kind#* }" -- "$word") ;;
    esac
    while IFS= read -r line; do
        [[ $line ]] && COMPREPLY+=("$prefix$line")
    done <<<"$offered"
}

_echelon_words() {  # the words of the line; readline cuts --option=value into three
    local i word
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if ((i > 2)) && [[ $word == = || ${COMP_WORDS[i - 1]} == = ]] && [[ ${words[${#words[@]} - 1]} == --* ]]; then
            words[${#words[@]} - 1]+=$word
        else
            words+=("$word")
        fi
    done
}

_echelon() {
    local IFS=$' \t\n' i word last prefix= kind=other words=() options= valued= operand= passes= open= behind=
    COMPREPLY=()
    _echelon_words
    last=$((${#words[@]} - 1)) word=${words[last]}
    if ((last == 1)); then
        kind='words @names@ --help --version'
        _echelon_offer
        return
    fi
    _echelon_command "${words[1]}" || return
    for ((i = 2; i < last; i++)); do
        if [[ $open ]]; then open=
        elif [[ ${words[i]} == -- ]]; then behind=$((last - i)); break
        elif [[ " $valued " == *" ${words[i]} "* ]]; then open=${words[i]}
        elif [[ ${words[i]} != -* && $passes ]]; then behind=2; break
        fi
    done
    if [[ $open ]]; then
        _echelon_value "${words[1]}" "$open"
    elif [[ $behind && $passes ]]; then
        kind=file
        ((behind == 1)) && kind=program
    elif [[ $behind || $word != -* ]]; then
        kind=$operand
    elif [[ $word == --*=* ]]; then
        _echelon_value "${words[1]}" "${word%%=*}"
        [[ $COMP_WORDBREAKS == *=* ]] || prefix=${word%%=*}=
        word=${word#*=}
    else
        kind="words $options"
    fi
    _echelon_offer
}

complete -o bashdefault -o default -F _echelon echelon
"""


def script(commands: Sequence[Help]) -> str:
    patterns: dict[str, list[str]] = {}
    for command in commands:
        for option in command.options:
            if option.value and kind([option]) != "other":
                names = (shlex.quote(f"{command.command} {name}") for name in option.names)
                patterns.setdefault(kind([option]), []).extend(names)
    values = (f"        {' | '.join(names)}) kind={shlex.quote(what)} ;;" for what, names in patterns.items())
    return filled(
        SCRIPT,
        commands="\n".join(_row(command) for command in commands),
        values="\n".join(values),
        names=" ".join(command.command for command in commands),
    )


def _row(command: Help) -> str:
    options = [name for option in command.offered for name in option.names]
    valued = [name for option in command.options if option.value for name in option.names]
    words = [
        f"options={shlex.quote(' '.join(options))}",
        f"valued={shlex.quote(' '.join(valued))}",
        f"operand={shlex.quote(kind(command.operands))}",
        *(["passes=yes"] if command.passes_arguments else []),
    ]
    return f"        {command.command}) {' '.join(words)} ;;"
