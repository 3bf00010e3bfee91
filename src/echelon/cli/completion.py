"""`echelon completion`: print a shell's completion script, made from the rows of every `--help`."""

from __future__ import annotations

from importlib import import_module

from echelon.cli import help as helps
from echelon.cli.help import Help
from echelon.cli.options import Option
from echelon.errors import UsageError

SHELLS = ("bash", "zsh", "fish")
OPTIONS: tuple[Option, ...] = (Option(names=("-h", "--help"), help="show this"),)
HELP = Help(
    command="completion",
    usage=("SHELL",),
    about="Print the script by which a shell completes commands, options, values and names of runs when you press Tab.",
    operands=(Option(names=("SHELL",), choices=SHELLS, help="the shell: bash, zsh or fish"),),
    groups=(("options", OPTIONS),),
    after="In ~/.bashrc: source <(echelon completion bash)\n"
    "In ~/.zshrc, after compinit: source <(echelon completion zsh)\n"
    "In ~/.config/fish/config.fish: echelon completion fish | source",
    example="source <(echelon completion bash)",
)


def main(arguments: list[str]) -> int:
    scanned = HELP.scan_all(arguments)
    if len(scanned.rest) != 1 or scanned.rest[0] not in SHELLS:
        asked = " ".join(scanned.rest) or "no shell"
        raise UsageError(f"{asked}: the choices are {', '.join(SHELLS)}", hint="source <(echelon completion bash)")
    print(script(scanned.rest[0]), end="")
    return 0


def script(shell: str) -> str:
    text: str = import_module(f"echelon.cli.shells.{shell}").script(helps.of_all())
    return text
