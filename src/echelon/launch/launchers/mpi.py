"""mpirun and mpiexec of Open MPI and the MPICH family: their lines give the layout, and they start our agents."""

from __future__ import annotations

from collections.abc import Sequence

from echelon.errors import UsageError
from echelon.launch.launchers import hosts
from echelon.launch.launchers.line import Given, Line, MpiStart
from echelon.launch.launchers.program import command
from echelon.launch.launchers.words import Grammar, Read, read, whole

# Open MPI 5's mpirun(1), Hydra's and Intel MPI's mpiexec(1): options that do not affect the layout are passed on.
GRAMMAR = Grammar(
    launcher="mpirun",
    flags=frozenset(
        {"allow-run-as-root", "oversubscribe", "nooversubscribe", "use-hwthread-cpus", "report-bindings", "bynode",
         "byslot", "pernode", "display-map", "display-allocation", "tag-output", "timestamp-output", "quiet", "verbose",
         "bind-to-core", "bind-to-none", "bind-to-socket", "nolocal", "prepend-rank", "print-rank-map", "genvall",
         "genvnone", "envall", "envnone", "disable-auto-cleanup", "nocheck", "localonly", "merge-stderr-to-stdout",
         "use-app-topology", "info", "debug-daemons", "enable-recovery"}
    ),
    values=frozenset(
        {"n", "np", "c", "npernode", "ppn", "perhost", "N", "H", "host", "hosts", "hostfile", "machinefile",
         "default-hostfile", "f", "x", "map-by", "bind-to", "rank-by", "wdir", "wd", "path", "prefix",
         "output-filename", "rf", "rankfile", "genvlist", "envlist", "env-list", "launcher", "bootstrap", "rmk",
         "iface", "configfile", "outfile-pattern", "errfile-pattern", "tune", "am", "output", "display", "pmixmca",
         "stdin", "rr", "binding", "s", "l"}
    ),
    wide={"mca": 2, "omca": 2, "gmca": 2, "prtemca": 2, "genv": 2, "env": 2, "gpmixmca": 2},
    short={"-v": "verbose", "-q": "quiet"},
    single_dash=True,
    abbreviates=False,
)  # fmt: skip
EXAMPLE = "echelon run -- mpirun -n 4 python train.py"
COUNTS = ("n", "np", "c")
PER_NODE = ("npernode", "ppn", "perhost", "N")
HOSTS = ("H", "host", "hosts")
FILES = ("hostfile", "machinefile", "default-hostfile", "f")


def line(name: str, program: str, words: Sequence[str]) -> Line:
    """Read the line; the launcher keeps its options and starts our agents instead of the program."""
    arguments = read(words, GRAMMAR, example=EXAMPLE)
    if ":" in arguments.rest:
        raise UsageError(
            f"{name} gets several programs, separated by a colon, but all ranks of a run must be one program",
            hint="use a script that asks for its rank, or start a run for each program",
        )
    own = tuple(words[: len(words) - len(arguments.rest)])
    total, per_node = _last(arguments, COUNTS), _last(arguments, PER_NODE)
    pool = _pool(name, arguments)
    others = tuple(host for host in pool if host not in hosts.HERE)
    options: tuple[Given, ...] = ()
    if per_node is not None:
        whole(name, per_node)
        options = (Given(key="nproc_per_node", value=per_node.value, text=per_node.text),)
    elif arguments.has("pernode"):
        options = (Given(key="nproc_per_node", value="1", text="-pernode"),)
    elif total is None and pool and (slots := hosts.slots_per_node(pool, launcher=name)):
        options = (Given(key="nproc_per_node", value=str(slots), text="the slots of its hosts"),)
    return Line(
        launcher=name,
        command=command(name, arguments.rest, example=EXAMPLE),
        options=options,
        num_ranks=whole(name, total) if total is not None else 0,
        num_ranks_text=total.text if total is not None else "",
        environ=exported(arguments),
        hosts=others,
        mpi=MpiStart(kind="mpirun", words=(program, *own)),
    )


def exported(arguments: Read) -> tuple[tuple[str, str], ...]:
    """Return the variables that the line sets in every rank: -x NAME=VALUE, -genv NAME VALUE."""
    named = [given.value.partition("=") for given in arguments.given if given.key in ("x", "genv", "env")]
    return tuple((name, value) for name, equals, value in named if equals)


def _pool(name: str, arguments: Read) -> dict[str, int]:
    listed, file = _last(arguments, HOSTS), _last(arguments, FILES)
    if listed is not None:
        return hosts.read_list(listed.value, launcher=name)
    return hosts.read_file(file.value, launcher=name) if file is not None else {}


def _last(arguments: Read, keys: Sequence[str]) -> Given | None:
    return next((given for given in reversed(arguments.given) if given.key in keys), None)
