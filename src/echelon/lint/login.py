"""Find the commands of a batch script that run only before its submission, where the script submits itself."""

from __future__ import annotations

import re

from echelon.lint.command import Command
from echelon.lint.toml import words

OF_A_JOB = r"(?:JOB_?ID|JOB_NAME|SUBMIT_DIR|(?:JOB_)?NODELIST|JOB_PARTITION|CLUSTER_NAME)\b"


def within_job(commands: list[Command], written: list[Command]) -> list[Command]:
    """Return the commands without those that run only before the submission; `written` are those of the script."""
    outside = _before_submission(written)
    return [each for each in commands if id(_outermost(each)) not in outside] if outside else commands


def _outermost(command: Command) -> Command:
    """Return the command of the script that leads to this one."""
    while command.outer is not None:
        command = command.outer
    return command.source or command


def _before_submission(commands: list[Command]) -> frozenset[int]:
    """Return the identities of commands behind a test that no variable of a job is set."""
    outside: set[int] = set()
    for at, command in enumerate(commands):
        is_unset = _is_unset(command)
        if is_unset is None:
            continue
        if command.keyword in ("if", "elif") and command.ending not in ("&&", "||"):
            block = command.blocks[-1]
            branches = [(block.number, block.branch)] if is_unset else [(block.number, block.branch + 1)]
            outside |= {id(each) for each in commands[at + 1 :] if _is_within(each, branches)}
        elif not command.keyword and command.ending == ("&&" if is_unset else "||"):
            outside |= _chained(commands[at + 1 :], len(command.blocks))
    return frozenset(outside)


def _is_within(command: Command, branches: list[tuple[int, int]]) -> bool:
    return command.outer is None and any((block.number, block.branch) in branches for block in command.blocks)


def _chained(commands: list[Command], depth: int) -> set[int]:
    """Return the commands of a chain of && and of the group that ends it."""
    chain: set[int] = set()
    for command in commands:
        is_grouped = len(command.blocks) > depth
        if command.words[0].raw == "}" and not is_grouped:
            break
        chain.add(id(command))
        if not is_grouped and command.ending != "&&":
            break
    return chain


def _is_unset(command: Command) -> bool | None:
    """Say whether a test asks that a variable of a job is unset (True) or set (False); None for another test."""
    if command.program not in ("[", "[[", "test"):
        return None
    name = rf"x?\$?\{{?{words()['slurm']['variable']}{OF_A_JOB}(?:[:+-][^}}]*)?\}}?"
    text = " ".join(word.text for word in command.argv[1:] if word.text not in ("]", "]]")).strip()
    if re.fullmatch(rf"-z {name}|! (?:-[nv] )?{name}|{name} ==? *x?", text):
        return True
    return False if re.fullmatch(rf"(?:-[nv] )?{name}|! -z {name}|{name} != *x?", text) else None
