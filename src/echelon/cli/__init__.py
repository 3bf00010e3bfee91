"""The command line: one file a command; stdout is data, stderr is talk."""

from __future__ import annotations

import os
import sys

COMMANDS = {
    "run": "start a script on every device of this machine or of a Slurm allocation",
    "exec": "in a task that srun or mpirun started: set every framework's variables, then become the program",
    "prove": "show that a script trains on several ranks as on one",
    "submit": "plan a job on this machine, write its batch script and hand it to Slurm",
    "plan": "say which partition, nodes, cores and memory a job gets, why, and what it costs",
    "check": "find what is wrong with this machine, or with the nodes of an allocation, before a run",
    "lint": "find mistakes in batch scripts and training scripts by reading them",
    "frameworks": "list the frameworks that are installed here, their devices, and known conflicts",
    "machines": "show the facts of known machines; learn a new machine from its Slurm",
    "topology": "show the cores, NUMA domains, devices and NICs of this node",
    "runs": "list the runs of this folder: name, state, start, duration, size",
    "clean": "remove run directories that nobody needs any more",
}

# What needs no Linux: these read texts and facts. All else starts processes, or looks at this machine's /proc and /sys.
ANYWHERE = ("plan", "lint", "machines")

HELP = """usage: echelon COMMAND …

From one GPU to a whole supercomputer.

commands:
{commands}

options:
  -h, --help     show this
  --version      show the version

example:
  echelon run -n 4 train.py --epochs 3
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    _fill_standard_descriptors()
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        from echelon.cli.talk import print_help

        print_help(HELP.format(commands="\n".join(f"  {name:<13}  {what}" for name, what in COMMANDS.items())))
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        from echelon import __version__

        print(f"echelon {__version__}")
        return 0
    return _dispatch(arguments[0], arguments[1:])


def _fill_standard_descriptors() -> None:
    """Open what the shell has closed (2>&-): the next file to be opened would get its number, and our words."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def _dispatch(name: str, arguments: list[str]) -> int:
    from echelon.errors import EchelonError, UsageError

    try:
        if name in COMMANDS:
            from importlib import import_module

            _refuse_other_systems(name)
            exit_code = int(import_module(f"echelon.cli.{name}").main(arguments))
            sys.stdout.flush()
            return exit_code
        raise UsageError(f"echelon has no command {name!r}", hint=_nearest_commands(name))
    except EchelonError as error:
        from echelon.cli.talk import say_error

        say_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `echelon machines lumi | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _refuse_other_systems(name: str) -> None:
    from echelon.errors import UsageError

    if sys.platform != "linux" and name not in ANYWHERE:
        raise UsageError(
            f"echelon {name} needs Linux, but this is {sys.platform}; here {', '.join(ANYWHERE)} work",
            hint="run it on the cluster",
        )


def _nearest_commands(name: str) -> str:
    import difflib

    if name.endswith(".py"):
        return f"echelon run {name}"
    near = difflib.get_close_matches(name, COMMANDS, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"the commands are {', '.join(COMMANDS)}"
