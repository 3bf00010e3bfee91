"""DeepSpeed's launcher: `deepspeed train.py --deepspeed_config ds.json`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from echelon.dialects import mpi
from echelon.dialects.line import Given, Grammar, LauncherLine, Read, read, renamed, whole, without_meaning
from echelon.environment import digits, regular_files
from echelon.errors import UsageError

# deepspeed 0.19.8, deepspeed/launcher/runner.py, and options of older versions
GRAMMAR = Grammar(
    launcher="deepspeed",
    flags=frozenset(
        {"module", "no-python", "no-local-rank", "no-ssh", "no-ssh-check", "force-multi", "save-pid",
         "bind-cores-to-rank", "quiet", "elastic-training"}
    ),
    values=frozenset(
        {"hostfile", "include", "exclude", "num-nodes", "num-gpus", "num-accelerators", "master-port", "master-addr",
         "node-rank", "launcher", "launcher-args", "enable-each-rank-log", "autotuning", "bind-core-list", "ssh-port",
         "venv-script", "log-level", "min-elastic-nodes", "max-elastic-nodes"}
    ),
    short={"-H": "hostfile", "-i": "include", "-e": "exclude", "-q": "quiet"},
)  # fmt: skip
EXAMPLE = "echelon run -- deepspeed --num_gpus=4 train.py --deepspeed --deepspeed_config ds.json"
HOSTFILE = "/job/hostfile"  # read if it exists, even if no option names it
ENVIRONMENT_FILE = ".deepspeed_env"  # in the home or the working folder: variables for all nodes
_BINDS = "--bind binds ranks"
_BY_ECHELON = "echelon starts the ranks"
NO_MEANING = {
    "launcher": _BY_ECHELON, "launcher-args": _BY_ECHELON, "force-multi": _BY_ECHELON, "no-ssh-check": _BY_ECHELON,
    "ssh-port": _BY_ECHELON, "save-pid": _BY_ECHELON, "venv-script": _BY_ECHELON,
    "bind-cores-to-rank": _BINDS, "bind-core-list": _BINDS,
    "enable-each-rank-log": "every rank has its own log in the run directory",
    "log-level": "only for a launcher, which echelon replaces", "quiet": "only for a launcher, which echelon replaces",
}  # fmt: skip
UNSUPPORTED = {
    "autotuning": "starts its own runs to find a configuration",
    "elastic-training": "changes the number of nodes while it runs",
    "min-elastic-nodes": "changes the number of nodes while it runs",
    "max-elastic-nodes": "changes the number of nodes while it runs",
}


def line(name: str, words: Sequence[str]) -> LauncherLine:
    arguments = read(words, GRAMMAR, example=EXAMPLE)
    for option in arguments.given:
        if option.key in UNSUPPORTED:
            raise UsageError(
                f"deepspeed {option.text}: it {UNSUPPORTED[option.key]}, but echelon starts a single run",
                hint="remove it, or start deepspeed without echelon",
            )
    command = arguments.script_or_program(name, example=EXAMPLE)
    slots = _pool(arguments)
    is_by_hand = arguments.has("no-ssh") or arguments.has("node-rank")
    others = tuple(host for host in slots if host not in mpi.HERE)
    num_nodes, per_node, devices = _layout(arguments, slots)
    options = [*renamed(arguments.given, {"node-rank": "node_rank"})]
    if is_by_hand:
        options += renamed(arguments.given, {"master-addr": "master_addr", "master-port": "master_port"})
    if num_nodes is not None and (num_nodes.value != "1" or others):
        options.append(num_nodes)
    if per_node is not None:
        options.append(per_node)
    met = {} if is_by_hand else {"master-addr": "rank 0's node", "master-port": "echelon takes a free port"}
    return LauncherLine(
        launcher=name,
        command=command,
        options=tuple(options),
        environ=_environment_file() if len(others) > 1 else (),
        devices=devices,
        hosts=() if is_by_hand else others,
        rank_argument="" if arguments.has("no-local-rank") else "--local_rank=",
        no_meaning=without_meaning(arguments.given, NO_MEANING | met),
    )


def _pool(arguments: Read) -> dict[str, int]:
    """Return the hosts of the line with their slots; empty means this machine."""
    named = arguments.value("hostfile")
    if named:
        return mpi.read_file(named, launcher="deepspeed")
    return mpi.read_file(HOSTFILE, launcher="deepspeed") if os.path.isfile(HOSTFILE) else {}


def _layout(arguments: Read, pool: dict[str, int]) -> tuple[Given | None, Given | None, str]:
    """Return nodes and ranks per node as options of `echelon run`, and the devices that ranks see on each node."""
    counted = arguments.last("num-gpus") or arguments.last("num-accelerators")
    nodes = arguments.last("num-nodes")
    chosen = arguments.last("include") or arguments.last("exclude")
    if chosen is not None and (counted or nodes or (arguments.has("include") and arguments.has("exclude"))):
        other = counted or nodes or arguments.last("exclude")
        raise UsageError(
            f"deepspeed: {chosen.text} and {other.text if other else ''} exclude each other", hint="remove one of them"
        )
    if chosen is not None:
        return _filtered(chosen, pool)
    per_node: Given | None = None
    if counted is not None and counted.value != "-1":
        whole("deepspeed", counted)
        per_node = Given(key="nproc_per_node", value=counted.value, text=counted.text)
    elif pool and (slots := mpi.slots_per_node(pool, launcher="deepspeed")):
        per_node = Given(key="nproc_per_node", value=str(slots), text=f"slots={slots} of {_source(arguments)}")
    if nodes is not None and nodes.value != "-1":
        most = whole("deepspeed", nodes)
        if pool and most > len(pool):
            raise UsageError(
                f"deepspeed {nodes.text}: {_source(arguments)} names only {len(pool)}", hint=f"--num_nodes {len(pool)}"
            )
        return Given(key="nnodes", value=nodes.value, text=nodes.text), per_node, ""
    if pool:
        return Given(key="nnodes", value=str(len(pool)), text=f"the hosts of {_source(arguments)}"), per_node, ""
    return None, per_node, ""


def _filtered(chosen: Given, pool: dict[str, int]) -> tuple[Given | None, Given | None, str]:
    """Apply an include filter NAME[:SLOT,SLOT][@NAME…]; every node must keep the same devices."""
    slots: dict[str, list[int]] = {}
    for part in chosen.value.split("@"):
        host, _, listed = part.partition(":")
        if not host or not all(digits.is_number(word) for word in listed.split(",") if listed):
            raise UsageError(f"deepspeed {chosen.text}: {part!r} is not NAME:SLOT,SLOT", hint="--include localhost:0,1")
        if pool and host not in pool:
            raise UsageError(
                f"deepspeed {chosen.text}: {host} is not among the hosts: {', '.join(pool)}",
                hint=f"--{chosen.key} {next(iter(pool))}",
            )
        slots.setdefault(host, []).extend(int(word) for word in listed.split(",") if listed)
    if chosen.key == "exclude":
        slots = _without(chosen, slots, pool)
    shown = {tuple(sorted(set(each or range(pool.get(host, 0))))) for host, each in slots.items()}
    if len(shown) != 1:
        raise UsageError(
            f"deepspeed {chosen.text}: the nodes would have different devices, but with echelon every node has "
            "the same",
            hint="name the same slots for every host, or: echelon run -n RANKS …",
        )
    devices = shown.pop()
    per_node = Given(key="nproc_per_node", value=str(len(devices)), text=chosen.text) if devices else None
    nodes = Given(key="nnodes", value=str(len(slots)), text=chosen.text)
    return nodes, per_node, ",".join(map(str, devices))


def _without(chosen: Given, slots: dict[str, list[int]], pool: dict[str, int]) -> dict[str, list[int]]:
    if not pool:
        from echelon.environment import devices

        pool = {"localhost": len(devices.visible(os.environ))}
        if not pool["localhost"]:
            raise UsageError(f"deepspeed {chosen.text}: this machine has no device", hint="remove it")
    left = {
        host: [slot for slot in range(count) if slot not in slots[host]] if host in slots else list(range(count))
        for host, count in pool.items()
        if slots.get(host) != []
    }
    if not any(left.values()):
        raise UsageError(f"deepspeed {chosen.text}: no device is left", hint="exclude fewer")
    return {host: each for host, each in left.items() if each}


def _source(arguments: Read) -> str:
    return arguments.value("hostfile") or HOSTFILE


def _environment_file() -> tuple[tuple[str, str], ...]:
    """Return the variables that DeepSpeed would export to all nodes."""
    name = os.environ.get("DS_ENV_FILE", ENVIRONMENT_FILE)
    pairs: dict[str, str] = {}
    for folder in (os.path.expanduser("~"), "."):
        try:
            lines = regular_files.read_text(os.path.join(folder, name)).splitlines()
        except OSError:
            continue  # most folders have no such file
        pairs.update((key, value) for key, equals, value in (each.partition("=") for each in lines) if equals)
    return tuple(pairs.items())
