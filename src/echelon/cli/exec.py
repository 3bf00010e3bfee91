"""`echelon exec`: start a program with every framework's rank variables."""

from __future__ import annotations

import os

from echelon.cli.help import Help
from echelon.cli.options import Option
from echelon.environment import become

CHOICES = {"--visible": become.VISIBLE}
OPTIONS = tuple(
    Option(names=names, value=value, help=meaning, choices=CHOICES.get(names[-1], ()))
    for names, value, meaning in become.OPTIONS
)
HELP = Help(
    command="exec",
    usage=(become.USAGE,),
    about=become.ABOUT,
    operands=(Option(names=("PROGRAM",), takes="program"),),
    groups=(("options", OPTIONS),),
    after=become.AFTER,
    example=become.EXAMPLE,
)


def main(arguments: list[str]) -> int:
    """Replace this process by the program; return only when that fails."""
    become.become(arguments, os.environ)
