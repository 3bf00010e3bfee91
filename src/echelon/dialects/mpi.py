"""mpirun and mpiexec of Open MPI and the MPICH family: their lines and lists of hosts give the layout."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from echelon.dialects.line import Given, Grammar, LauncherLine, MpiStart, Read, command, read, whole
from echelon.environment import digits, regular_files
from echelon.errors import UsageError

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


def line(name: str, program: str, words: Sequence[str]) -> LauncherLine:
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
    others = tuple(host for host in pool if host not in HERE)
    options: tuple[Given, ...] = ()
    if per_node is not None:
        whole(name, per_node)
        options = (Given(key="nproc_per_node", value=per_node.value, text=per_node.text),)
    elif arguments.has("pernode"):
        options = (Given(key="nproc_per_node", value="1", text="-pernode"),)
    elif total is None and pool and (slots := slots_per_node(pool, launcher=name)):
        options = (Given(key="nproc_per_node", value=str(slots), text="the slots of its hosts"),)
    return LauncherLine(
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
        return read_list(listed.value, launcher=name)
    return read_file(file.value, launcher=name) if file is not None else {}


def _last(arguments: Read, keys: Sequence[str]) -> Given | None:
    return next((given for given in reversed(arguments.given) if given.key in keys), None)


LINE = re.compile(
    r"(?P<host>[^\s:]+)(?::(?P<short>[0-9]{1,9})|(?:\s+(?:slots\s*=\s*(?P<slots>[0-9]{1,9})|max_slots\s*=\s*\d+))*)\s*$"
)
HERE = ("localhost", "127.0.0.1", "::1")


def read_file(path: str, *, launcher: str) -> dict[str, int]:
    """Return the hosts of a file with their slots, 0 if not stated; raise UsageError if it cannot be read."""
    try:
        text = regular_files.read_text(path)
    except OSError as error:
        raise UsageError(
            f"{launcher}: echelon cannot read the host file {path}: {error.strerror}",
            hint="in a Slurm allocation remove it: echelon knows the nodes",
        ) from None
    hosts: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        content = raw.partition("#")[0].strip()
        match = LINE.fullmatch(content)
        if content and (match is None or match["host"] in hosts):
            mistake = "names a host a second time" if match is not None else "is not `host slots=N`"
            raise UsageError(f"{launcher}: line {number} of {path} {mistake}: {raw.strip()}", hint="worker-0 slots=4")
        if match is not None and content:
            hosts[match["host"]] = int(match["short"] or match["slots"] or 0)
    if not hosts:
        raise UsageError(f"{launcher}: the host file {path} names no host", hint="worker-0 slots=4")
    return hosts


def read_list(text: str, *, launcher: str) -> dict[str, int]:
    """Return the hosts of server1:4,server2:4 with their slots, 0 if not stated."""
    hosts: dict[str, int] = {}
    for word in text.split(","):
        host, colon, slots = word.strip().partition(":")
        if not host or (colon and not digits.is_number(slots)):
            raise UsageError(f"{launcher}: {word!r} in {text!r} is not host:slots", hint="-H server1:4,server2:4")
        hosts[host] = hosts.get(host, 0) + int(slots or 0)
    return hosts


def slots_per_node(hosts: Mapping[str, int], *, launcher: str) -> int:
    """Return the slots that every host has, 0 if not stated; raise UsageError if hosts differ."""
    counts = set(hosts.values())
    if len(counts) > 1:
        listed = ", ".join(f"{host}: {slots or 'none named'}" for host, slots in hosts.items())
        least = min((count for count in counts if count), default=1)
        raise UsageError(
            f"{launcher} names different numbers of ranks for its hosts ({listed}), but with echelon every "
            "node has the same number",
            hint=f"give all hosts the same number: {next(iter(hosts))}:{least}",
        )
    return counts.pop()
