"""`echelon exec`: set the rank variables of every framework, then become the program."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from ..hardware import files
from . import devices, digits, frameworks, surroundings, threads
from .errors import WrongEnvironmentError
from .frameworks import RankPlace

VISIBLE = ("own", "all")
USAGE = "[--visible own|all] PROGRAM [arguments ...]"
ABOUT = (
    "Start PROGRAM as one rank: read which rank this is from what started it (srun, mpirun, mpiexec, torchrun; else it"
    " is the only one), set the variables that torch, DeepSpeed, Accelerate, Lightning, Horovod and JAX read, and"
    " become PROGRAM."
)
OPTIONS = (
    (
        ("--visible",),
        "WHICH",
        "all (default): the rank sees the devices that it sees now; own: it sees the device of its local rank alone,"
        " as device 0; LOCAL_RANK is then 0, and ECHELON_LOCAL_RANK keeps the local rank",
    ),
    (("-h", "--help"), "", "show this"),
)
"""The names of each option, the name of its value, and its meaning: `echelon.cli` makes its rows of them."""
AFTER = (
    "What is set already stays: MASTER_ADDR, MASTER_PORT, OMP_NUM_THREADS. Only RANK, WORLD_SIZE and their like are set"
    " anew where they contradict the launcher."
)
EXAMPLE = "srun --ntasks-per-node=8 --gpus-per-node=8 echelon exec python train.py"
_NAMES = tuple(name for names, _, _ in OPTIONS for name in names)


class InvalidArguments(WrongEnvironmentError):
    """A mistake in the command line, or in the program that it names."""


class CommandLine(NamedTuple):
    """The content of the command line."""

    visible: str
    program: list[str]


def main(argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Become the program of the command line, or end with exit code 2 and the reason."""
    try:
        become(argv, environ)
    except WrongEnvironmentError as error:
        sys.stderr.write(f"echelon: error: {error.message}\n  hint: {error.hint}\n")
        raise SystemExit(2) from None


def become(argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Become the program of the command line; raise WrongEnvironmentError if that fails."""
    command_line = read(argv)
    surrounding = surroundings.find(environ)
    place = surrounding.place(environ)
    if place.rank == 0:
        _warn(environ, place, surrounding)
    _become(command_line.program, rank_environment(environ, visible=command_line.visible))


def read(argv: Sequence[str]) -> CommandLine:
    """Parse the command line; options end at the program's name."""
    words = list(argv)
    visible = "all"
    while words and words[0].startswith("-"):
        option, equals, value = words.pop(0).partition("=")
        if option in ("--help", "-h"):
            sys.stdout.write(help_text())
            raise SystemExit(0)
        if option == "--":
            break
        if option != "--visible":
            raise _unknown(option)
        if not equals:
            value = words.pop(0) if words else ""
        if value not in VISIBLE:
            raise InvalidArguments(
                f"--visible takes own or all, not {value!r}", "echelon exec --visible own python train.py"
            )
        visible = value
    if not words or not words[0]:
        raise InvalidArguments(
            "echelon exec needs a program", f"echelon exec {USAGE}, such as: echelon exec python train.py"
        )
    return CommandLine(visible, words)


def help_text() -> str:
    """Return the help as it is without the rest of echelon, inside of node.pyz."""
    import textwrap

    lines = [f"usage: echelon exec {USAGE}", "", textwrap.fill(ABOUT, 88), "", "options:"]
    for names, value, meaning in OPTIONS:
        left = f"  {', '.join(names)} {value}".rstrip()
        lines += textwrap.wrap(meaning, 88, initial_indent=f"{left:<20}", subsequent_indent=" " * 20)
    return "\n".join([*lines, "", textwrap.fill(AFTER, 88), "", f"example: {EXAMPLE}", ""])


def rank_environment(environ: Mapping[str, str], *, visible: str = "all", root: str = "/") -> dict[str, str]:
    """Return the environment of the rank that the launcher's variables describe."""
    surrounding = surroundings.find(environ)
    place = surrounding.place(environ)
    variables = frameworks.rank_variables(place, run_id=surrounding.run_id(environ))
    if isinstance(surrounding, surroundings.Inherited):
        environment = {**variables, **environ}
    else:
        environment = frameworks.merged(environ, variables)
    if place.local_world_size > 1 and "OMP_NUM_THREADS" not in environ:
        environment["OMP_NUM_THREADS"] = str(_num_threads(environ, place, root))
    if visible == "own":
        changes = devices.only(environ, place.local_rank, root)
    elif place.local_world_size > 1 and place.local_rank and len(devices.visible(environ, root)) == 1:
        # Slurm gave each task its own device, which has number 0; any other number is an invalid device.
        changes = {**devices.first_device(place.local_rank)}
    else:
        changes = {}
    environment.update((name, value) for name, value in changes.items() if value is not None)
    return {name: value for name, value in environment.items() if changes.get(name, "") is not None}


def _num_threads(environ: Mapping[str, str], place: RankPlace, root: str) -> int:
    """Return the cores of this rank, whether it is bound to them or shares the node's cores with other ranks."""
    mine = threads.num_cores(root)
    shared = digits.whole(environ.get("SLURM_CPUS_ON_NODE", "")) or os.cpu_count() or mine
    return max(1, min(mine, threads.omp_num_threads(shared, place.local_world_size)))


def _warn(environ: Mapping[str, str], place: RankPlace, surrounding: surroundings.Surrounding) -> None:
    """Warn on rank 0 about rank variables of an older world, which are replaced."""
    actual = {"RANK": str(place.rank), "WORLD_SIZE": str(place.world_size)}
    wrong = [name for name in actual if environ.get(name, actual[name]) != actual[name]]
    if wrong:
        said = " and ".join(f"{name}={environ[name]}" for name in wrong)
        sys.stderr.write(
            f"echelon: warning: the environment says {said}, but for {surrounding.name} this is rank "
            f"{place.rank} of {place.world_size}; echelon gives this rank to the program\nhint: unset "
            f"{' '.join(wrong)}\n"
        )


def _become(program: list[str], environment: Mapping[str, str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores these two signals, and the program would inherit that: `… | head` would never end.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvpe(program[0], program, environment)
    except OSError as error:
        raise _refused(program, environment, error) from error


def _refused(program: list[str], environment: Mapping[str, str], error: OSError) -> InvalidArguments:
    name = program[0]
    path = _find(name, environment)
    if not path:
        return _not_found(name, environment)
    if os.path.isdir(path):
        return InvalidArguments(f"{path} is a folder, not a program", _suggestion(program))
    if error.errno == errno.ENOENT:
        return InvalidArguments(
            f"{path} needs an interpreter that does not exist: {_first_line(path)}",
            f"correct its first line, or name the interpreter: echelon exec python {name}",
        )
    if error.errno == errno.ENOEXEC:
        return InvalidArguments(
            f"{path} is not a program for this machine, and does not begin with #!", f"echelon exec bash {name}"
        )
    if error.errno == errno.EACCES:
        return InvalidArguments(f"{path} is not executable", _suggestion(program))
    return InvalidArguments(
        f"echelon cannot start {path}: {error.strerror}",
        "one argument or variable may hold 128 KiB, all together a quarter of `ulimit -s`"
        if error.errno == errno.E2BIG
        else f"try it without echelon: {name}",
    )


def _find(name: str, environment: Mapping[str, str]) -> str:
    """Return the first file that the name may mean; executable files come first."""
    folders = [""] if os.sep in name else os.get_exec_path(environment)
    paths = [path for path in (os.path.join(folder, name) for folder in folders) if os.path.exists(path)]
    runnable = [path for path in paths if os.access(path, os.X_OK) and not os.path.isdir(path)]
    return (runnable or paths or [""])[0]


def _not_found(name: str, environment: Mapping[str, str]) -> InvalidArguments:
    folders = [os.path.dirname(name)] if os.sep in name else os.get_exec_path(environment)
    if os.path.exists(name):
        interpreter = "python " if name.endswith(".py") else "./"
        return InvalidArguments(f"no folder of PATH has {name}", f"echelon exec {interpreter}{name}")
    import difflib  # only a mistyped name pays these 3 ms

    names = {entry for folder in folders for entry in files.names(folder)}
    near = difflib.get_close_matches(os.path.basename(name), sorted(names), n=3)
    where = f"in {folders[0]}" if os.sep in name else f"in the folders of PATH={environment.get('PATH', '')}"
    return InvalidArguments(
        f"there is no program {name}",
        f"did you mean {' or '.join(near)}?" if near else f"nothing {where} has a similar name",
    )


def _unknown(option: str) -> InvalidArguments:
    import difflib

    near = difflib.get_close_matches(option, _NAMES, n=1) or [f"one of {', '.join(_NAMES)}"]
    return InvalidArguments(
        f"echelon exec has no option {option}", f"did you mean {near[0]}? usage: echelon exec {USAGE}"
    )


def _suggestion(program: list[str]) -> str:
    name = program[0]
    return f"echelon exec python {name}" if name.endswith(".py") else f"chmod +x {name}"


def _first_line(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.readline(200).strip()
