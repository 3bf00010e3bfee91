"""A list of hosts as a scheduler, `--hosts a,b`: one ssh for each of them starts its agent."""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Mapping, Sequence

from echelon.errors import RunError, UsageError
from echelon.scheduler.protocol import AgentStart, Allocation, End, RunNodes, Scheduler, not_started, without_python
from echelon.scheduler.this_machine import refuse_tasks
from echelon.spec import Job, Plan

PROGRAM = "ECHELON_SSH"  # the variable with another ssh, and its options
OPTIONS = (
    "BatchMode=yes", "ConnectTimeout=20", "ServerAliveInterval=10", "LogLevel=ERROR",
    "ControlPath=none",  # a shared connection would outlive its process, or end without it
)  # fmt: skip
ENVIRONMENT = "environment.sh"
NO_RUN_DIRECTORY, NO_FOLDER, NO_PROGRAM = 91, 92, 93
_BEGIN = (
    f'[ -r "$1" ] || exit {NO_RUN_DIRECTORY}; . "$1"; shift; command -v "$1" >/dev/null || exit {NO_PROGRAM}; exec "$@"'
)
_OF_A_SESSION = re.compile(
    r"SSH_.*|HOST|HOSTNAME|DISPLAY|XAUTHORITY|XDG_RUNTIME_DIR|XDG_SESSION_.*|DBUS_.*|PWD|OLDPWD|SHLVL|_"
)
_HOST = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?::(?P<slots>[1-9][0-9]{0,5}))?")
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+")
_UNKNOWN = "Could not resolve hostname"
_HINTS = (
    (_UNKNOWN, "getent hosts {host} shows what this machine knows; a name in ~/.ssh/config is good too"),
    ("Permission denied", "ssh-copy-id {host}   so that ssh asks for no password"),
    ("Host key verification failed", "ssh {host} true   once by hand, to accept its key"),
    ("", "this must work first: {ssh} {host} true"),
)
_NOT_WITH = {
    "nnodes": "the list already says which nodes there are; name fewer hosts",
    "spares": "each host of the list trains",
    "exclude_bad": "it leaves out nodes of an allocation; name fewer hosts",
    "node_rank": "echelon starts itself on each host",
}


def read(values: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """Return the hosts of --hosts, and the number of ranks that each has by `a:2,b:2`, else "auto"."""
    text = values["hosts"]
    for key, why in _NOT_WITH.items():
        if key in values:
            option = f"--{key.replace('_', '-')}"
            raise UsageError(f"{option} does not go with --hosts: {why}", hint=f"remove {option}")
    matches = [_HOST.fullmatch(word) for word in text.split(",")]
    names = [match["name"] for match in matches if match is not None]
    if len(names) < len(matches):
        raise UsageError(
            f"--hosts {text or repr(text)}: give names of hosts, or host:ranks, with commas between them; "
            "another user or port stands in ~/.ssh/config",
            hint="echelon run --hosts node1,node2 …",
        )
    twice = next((name for name in names if names.count(name) > 1), "")
    if twice:
        fewer = ",".join(dict.fromkeys(text.split(",")))
        raise UsageError(f"--hosts {text}: {twice} is named twice", hint=f"--hosts {fewer}   and -n for more ranks")
    _refuse_own_loopback(text, names)
    return tuple(names), _slots(text, [match["slots"] or "" for match in matches if match is not None], values)


def _refuse_own_loopback(text: str, names: Sequence[str]) -> None:
    loopbacks = [name for name in names if _LOOPBACK.fullmatch(name)]
    if loopbacks and len(loopbacks) < len(names):
        raise UsageError(
            f"--hosts {text}: the other hosts would look for {loopbacks[0]} on themselves",
            hint=f"--hosts {text.replace(loopbacks[0], socket.gethostname())}",
        )


def _slots(text: str, slots: Sequence[str], values: Mapping[str, str]) -> str:
    if len(set(slots)) > 1:
        raise UsageError(
            f"--hosts {text}: the hosts have different numbers of ranks; each must get the same",
            hint=f"--hosts {re.sub(':[0-9]+', '', text)} -n {min(int(number) for number in slots if number)}",
        )
    asked = values.get("nproc_per_node", slots[0])
    if slots[0] and asked != slots[0]:
        raise UsageError(f"--hosts {text} and -n {asked} disagree on the ranks of each host", hint=f"remove -n {asked}")
    return slots[0] or "auto"


class Hosts(Scheduler):
    """ssh, with the environment and the folder of this process; the hosts share its file system."""

    is_remote = True
    end_seconds = 10.0

    def place(self, job: Job, allocation: Allocation | None, node: str) -> RunNodes:  # noqa: ARG002
        listed = ",".join(job.hosts)
        if allocation is not None:
            raise UsageError(
                f"--hosts {listed}: this is job {allocation.job_id} of Slurm, which has the nodes "
                f"{', '.join(allocation.nodes)}",
                hint="remove --hosts: echelon takes the nodes of the job",
            )
        if job.launcher is not None and job.launcher.is_step:
            raise UsageError(
                f"--hosts {listed}: {job.launcher.name} starts its ranks itself",
                hint="start the script without it; echelon sets the variables of its ranks",
            )
        refuse_tasks(job)
        return RunNodes(where="ssh", nodes=job.hosts, why="as named by --hosts")

    def names(self, plan: Plan) -> tuple[str, ...]:
        return plan.nodes

    def starts(self, plan: Plan, agent: Sequence[str], environ: Mapping[str, str]) -> tuple[AgentStart, ...]:
        return tuple(self.start_on(host, plan, (*agent, str(index)), environ) for index, host in enumerate(plan.nodes))

    def start_on(self, node: str, plan: Plan, command: Sequence[str], environ: Mapping[str, str]) -> AgentStart:
        there = ("sh", "-c", _BEGIN, "sh", os.path.join(plan.run_directory, ENVIRONMENT), *command)
        return AgentStart(
            name=f"the ssh to {node}",
            words=(*_ssh(environ), "-T", node, *map(shlex.quote, there)),  # the shell of the host parses them
            environ=environ,
            agent_index=plan.nodes.index(node),
        )

    def files(self, environ: Mapping[str, str]) -> Mapping[str, bytes]:
        exports = [
            f"export {name}={shlex.quote(value)}\n"
            for name, value in environ.items()
            if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and not _OF_A_SESSION.fullmatch(name)
        ]
        text = f"cd {shlex.quote(os.getcwd())} || exit {NO_FOLDER}\n{''.join(exports)}"
        return {ENVIRONMENT: os.fsencode(text)}

    def cannot_start(self, plan: Plan, end: End) -> UsageError | RunError:
        host = plan.nodes[end.start.agent_index]
        if end.exit_code == NO_RUN_DIRECTORY:
            return UsageError(
                f"{host} does not see the run directory {plan.run_directory}: the hosts must share its file system",
                hint="echelon run --run-dir DIRECTORY-ON-A-SHARED-DISK …",
            )
        if end.exit_code == NO_FOLDER:
            return UsageError(
                f"{host} has no folder {os.getcwd()}", hint="start echelon in a folder that all hosts share"
            )
        if end.exit_code == NO_PROGRAM:
            return without_python(plan, [host])
        if end.exit_code != 255:  # ssh's own failures
            is_cut_off = "echelon: agent on" in end.said
            hint = f"{host} must reach this machine, at any port: is there a firewall?" if is_cut_off else ""
            return not_started(end, hint)
        words = (end.said.splitlines() or ["it said nothing"])[-1]
        hint = next(hint for pattern, hint in _HINTS if pattern in end.said)
        kind = UsageError if _UNKNOWN in end.said else RunError
        ssh = shlex.join(end.start.words[: end.start.words.index(OPTIONS[0]) + 1])
        return kind(f"ssh does not reach {host}: {words}", hint=hint.format(host=host, ssh=ssh))

    def without_lost_nodes(self, plan: Plan) -> str:  # noqa: ARG002
        return "leave that host out of --hosts; --max-restarts N starts its agent again, if ssh reaches it"


def _ssh(environ: Mapping[str, str]) -> tuple[str, ...]:
    words = shlex.split(environ.get(PROGRAM, "ssh"))
    if not words:
        raise UsageError(f"{PROGRAM} is empty", hint=f"unset {PROGRAM}")
    return (*words, *(word for option in OPTIONS for word in ("-o", option)))
