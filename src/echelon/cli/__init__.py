"""The command line: one file a command; stdout is data, stderr is talk."""

from __future__ import annotations

import sys

from echelon.cli import streams
from echelon.errors import EchelonError, UsageError

COMMANDS = {
    "run": "start a script on every device of this machine or of a Slurm allocation",
    "exec": "in a task that srun or mpirun started: set every framework's variables, then become the program",
    "pool": "keep what scripts import ready on the nodes of an allocation, so that the next run starts at once",
    "pack": "make one image of a folder of many small files, for --stage-data",
    "prove": "show that a script trains on several ranks as on one",
    "bench": "measure how a script scales, how fast ranks exchange data, and how long a start takes",
    "sweep": "run a script with many values of its parameters, several runs side by side, and compare them",
    "rehearse": "let things go wrong in a scratch copy, and say whether the training survives them",
    "submit": "plan a job on this machine, write its batch script and hand it to Slurm",
    "plan": "say which partition, nodes, cores and memory a job gets, why, and what it costs",
    "fit": "tell before the queue what a training takes: which devices and strategies fit, and how far it scales",
    "check": "find what is wrong with this machine, or with the nodes of an allocation, before a run",
    "lint": "find mistakes in batch scripts and training scripts by reading them",
    "frameworks": "list the frameworks that are installed here, their devices, and known conflicts",
    "machines": "show the facts of known machines; learn a new machine from its Slurm",
    "topology": "show the cores, NUMA domains, devices and NICs of this node",
    "runs": "list the runs of this folder: name, state, start, duration, size",
    "watch": "show what every rank and device of a run does, while it goes on",
    "report": "say what a run used, where its time went, and what would help; compare two runs",
    "profile": "say what the steps wait for: input, compute, communication, launches, copies",
    "checkpoint": "list and verify the checkpoints of a run; export a model",
    "clean": "remove run directories that nobody needs any more",
    "completion": "print what bash, zsh or fish needs to complete command lines",
    "man": "print the manual page, echelon(1)",
}

# These commands need no Linux: they read texts and facts.
# # All others start processes, or read this machine's /proc and /sys.
ANYWHERE = ("plan", "lint", "machines", "completion", "man")

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
    """Run one command and return its exit code; without `argv`, read sys.argv and replace the standard streams."""
    if argv is None:
        streams.replace()
        sys.excepthook = streams.tell_mistake
    try:
        exit_code = _exit_code_of(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except streams.FOREIGN as error:
        return _tell(streams.translated(error), is_silent=streams.is_unread(error))
    except EchelonError as error:
        return _tell(error)
    return exit_code


def _exit_code_of(arguments: list[str]) -> int:
    try:
        return _run_command(arguments)
    except SystemExit as end:  # after --help, or at a signal
        return int(end.code or 0)


def _run_command(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        from echelon.cli.talk import print_help

        print_help(HELP.format(commands="\n".join(f"  {name:<13}  {what}" for name, what in COMMANDS.items())))
        return 0 if arguments else 2
    name = arguments[0]
    if name in ("-V", "--version"):
        from echelon import __version__

        print(f"echelon {__version__}")
        return 0
    if name in COMMANDS:
        from importlib import import_module

        if sys.platform != "linux" and name not in ANYWHERE:
            raise UsageError(
                f"echelon {name} needs Linux, but this is {sys.platform}; here {', '.join(ANYWHERE)} work",
                hint="run it on the cluster",
            )
        return int(import_module(f"echelon.cli.{name}").main(arguments[1:]))
    raise UsageError(f"echelon has no command {name!r}", hint=_nearest_commands(name))


def _tell(error: EchelonError, *, is_silent: bool = False) -> int:
    """Print an error and return the exit code; a closed pipe (… | head) prints nothing."""
    if not is_silent:
        from echelon.cli.talk import say_error

        say_error(error)
    return error.exit_code


def _nearest_commands(name: str) -> str:
    import difflib

    if name.endswith(".py"):
        return f"echelon run {name}"
    near = difflib.get_close_matches(name, COMMANDS, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"the commands are {', '.join(COMMANDS)}"
