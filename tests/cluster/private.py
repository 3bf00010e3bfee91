"""Run a private Slurm cluster and talk to it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .errors import ClusterError
from .layout import MAX_NODES, Layout, write_files
from .machines import site_of
from .ports import free_ports
from .processes import CLUSTER_MARK, Process, descendants, is_alive, kill
from .site import Site, lumi_g
from .texts import Ended, ended, fields, tail, told

if TYPE_CHECKING:
    from echelon.machines.machine import Machine

REPOSITORY = Path(__file__).parents[2]
DAEMONS = ("munged", "slurmctld", "slurmd")
START_ATTEMPTS = 3
START_SECONDS = 30.0
POLL_SECONDS = (0.01, 0.25)
NOT_ENDED = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED", "STOPPED"}


def missing_tools() -> str:
    """Say what this machine lacks to run a cluster; empty when nothing is missing."""
    if os.geteuid() != 0:
        return "the private Slurm cluster needs root: it makes device files and names nodes in /etc/hosts"
    missing = [name for name in (*DAEMONS, "srun") if not shutil.which(name, path=_path())]
    if missing:
        return f"{', '.join(missing)} not found; install with: tools/install-slurm"
    return ""


class Cluster:
    """A private Slurm cluster; `start` and `stop` it, or use it in a `with` statement."""

    def __init__(
        self,
        *,
        num_nodes: int = 4,
        task_plugin: str = "task/none",
        slurmd_timeout_seconds: int = 5,
        message_timeout_seconds: int = 5,
        site: Site | None = None,
    ) -> None:
        """Describe a cluster; nothing is started yet.

        A killed slurmd is noticed after the first timeout plus about twice the second: measured 9 s with
        5 and 2, 16 s with 5 and 5. A busy machine needs the longer ones. A site says how many nodes are
        live itself; without one the cluster is a small LUMI-G.
        """
        if site is not None:
            num_nodes = len(site.live_nodes)
        if not 1 <= num_nodes <= MAX_NODES:
            raise ClusterError(f"num_nodes is {num_nodes}; choose from 1 to {MAX_NODES}")
        if task_plugin not in ("task/none", "task/affinity"):
            raise ClusterError(f"task_plugin is {task_plugin!r}; choose task/none or task/affinity")
        self._guard: subprocess.Popen[bytes] | None = None
        self._layout = Layout(
            site=site or lumi_g(num_nodes),
            folder=Path(),
            controller_port=0,
            node_ports=(0,) * num_nodes,
            unused_port=0,
            task_plugin=task_plugin,
            slurmd_timeout_seconds=slurmd_timeout_seconds,
            message_timeout_seconds=message_timeout_seconds,
        )
        self._daemons: dict[str, int] = {}

    @classmethod
    def like(
        cls,
        machine: Machine,
        *,
        partitions: Sequence[str] | None = None,
        num_live_nodes: int = 4,
        **settings: Any,
    ) -> Cluster:
        """Describe a cluster with the partitions, limits and nodes of a machine.

        All nodes of the machine are known to Slurm, but only `num_live_nodes` of each kind run; the rest is
        down, so that a job at the limit waits. The settings are those of the constructor; `machines` says
        which limits Slurm enforces itself and which the job_submit script does.
        """
        return cls(site=site_of(machine, partitions=partitions, num_live_nodes=num_live_nodes), **settings)

    def __enter__(self) -> Cluster:
        """Start, and return when all nodes are idle."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop, and return when nothing is left."""
        self.stop()

    def start(self) -> None:
        """Start the daemons and wait until all nodes are idle."""
        if reason := missing_tools():
            raise ClusterError(reason)
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self._start()
                return
            except ClusterError as error:
                self.stop()
                if "Address already in use" not in str(error) or attempt == START_ATTEMPTS:
                    raise
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """End every process of the cluster and remove its folder."""
        if self._guard is None:
            return
        guard, self._guard = self._guard, None
        if guard.stdin:
            with suppress(BrokenPipeError):  # a fork of this process may hold the pipe open, so its end says nothing
                guard.stdin.write(b'{"stop": true}\n')
                guard.stdin.flush()
        for pipe in (guard.stdin, guard.stdout):
            if pipe:
                pipe.close()
        guard.wait()
        self._daemons.clear()

    @property
    def folder(self) -> Path:
        """Return the folder that holds all files of the cluster."""
        return self._layout.folder

    @property
    def _logs(self) -> Path:
        return self.folder / "log"

    @property
    def conf(self) -> Path:
        """Return the path of slurm.conf."""
        return self._layout.conf

    @property
    def nodes(self) -> list[str]:
        """Return the names of the nodes."""
        return list(self._layout.addresses)

    @property
    def addresses(self) -> dict[str, str]:
        """Return the loopback address of each node, by name."""
        return self._layout.addresses

    @property
    def environ(self) -> dict[str, str]:
        """Return a copy of this process's environment in which Slurm's clients find this cluster."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
        quiet = {"ECHELON_CHECK": "off"}  # else each run would say that cores and devices are not what they claim
        return {**quiet, **inherited, "SLURM_CONF": str(self.conf), CLUSTER_MARK: str(self.folder)}

    def popen(self, *argv: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command whose Slurm is this cluster; the options are those of subprocess.Popen."""
        settings: dict[str, Any] = {"env": self.environ, "text": True, "start_new_session": True, **options}
        return subprocess.Popen(argv, **settings)

    def run(
        self,
        *argv: str,
        check: bool = True,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command whose Slurm is this cluster and return its output; end it with all its children."""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = self.popen(*argv, env=dict(env) if env is not None else self.environ, cwd=cwd, **pipes)
        try:
            output, talk = process.communicate(stdin, timeout=timeout)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            output, talk = process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise ClusterError(told(argv, f"still ran after {timeout} s", output, talk)) from None
            raise
        if check and process.returncode:
            raise ClusterError(told(argv, f"exit code {process.returncode}", output, talk))
        return subprocess.CompletedProcess(argv, process.returncode, output, talk)

    def salloc(
        self, *options: str, command: Iterable[str], nodes: int = 1, **settings: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside an interactive allocation; the settings are those of `run`."""
        return self.run("salloc", f"--nodes={nodes}", *options, *command, **settings)

    def sbatch(self, script: str, *options: str, **settings: Any) -> int:
        """Submit a script's text and return the id of the job; each task of an array has a log of its own."""
        output = f"--output={self._logs}/job-%j.out"
        settings = {"cwd": self.folder, **settings}
        return int(self.run("sbatch", "--parsable", output, *options, stdin=script, **settings).stdout)

    def log(self, job: int) -> str:
        """Return what a batch job has written so far."""
        path = self._logs / f"job-{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def job(self, job: int) -> dict[str, str]:
        """Return what `scontrol show job` says, by field."""
        return fields(self.run("scontrol", "show", "job", "--oneliner", str(job)).stdout)

    def wait_job(self, job: int, *, timeout: float = 60.0) -> Ended:
        """Wait until a job has ended and its nodes are free, and say how it ended."""
        self.wait(lambda: self.job(job)["JobState"] not in NOT_ENDED, f"job {job} ends", timeout=timeout)
        return ended(self.job(job))

    def wait_job_state(self, job: int, state: str, *, timeout: float = 60.0) -> None:
        """Wait until a job is in a state such as RUNNING."""
        self.wait(lambda: self.job(job)["JobState"] == state, f"job {job} is {state}", timeout=timeout)

    def state(self, node: str) -> str:
        """Return a node's state in small letters, flags behind a plus: idle, down+not_responding …"""
        return fields(self.run("scontrol", "show", "node", "--oneliner", node).stdout)["State"].lower()

    def wait_state(self, node: str, state: str, *, timeout: float = 60.0) -> None:
        """Wait until a node's state, without its flags, is the given one."""
        self.wait(lambda: self.state(node).split("+")[0] == state, f"{node} is {state}", timeout=timeout)

    def down(self, node: str) -> None:
        """Set a node down, as an operator does; its jobs end."""
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")

    def resume(self, node: str) -> None:
        """Return a node to service and wait until it is idle."""
        if not self.state(node).startswith("idle"):
            self.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        self.wait(lambda: self.state(node) == "idle", f"{node} is idle")

    def slurmd_pid(self, node: str) -> int:
        """Return the process id of a node's slurmd."""
        return self._daemons[node]

    def kill_slurmd(self, node: str) -> None:
        """Kill a node's slurmd and nothing else: its steps run on, unseen."""
        pid = self._daemons[node]
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
        self.wait(lambda: not is_alive(pid), f"slurmd of {node} is gone", timeout=20.0)

    def power_off(self, node: str) -> None:
        """Kill everything on a node at once, as a power failure does."""
        self.kill_slurmd(node)
        while found := [process for process in self.processes() if process.node == node]:
            for process in found:
                kill(process.pid)

    def restart_slurmd(self, node: str) -> None:
        """Start a node's slurmd again and wait until the node is idle."""
        if not is_alive(self._daemons[node]):
            self._start_slurmd(node)
        self.resume(node)
        self._free_cores()

    def processes(self) -> list[Process]:
        """List what runs on the nodes beside the daemons: steps, tasks and what they left behind."""
        if self._guard is None:
            return []
        # slurmctld starts a slurmscriptd of its own.
        daemons = {*self._daemons.values()}
        return [
            process
            for process in descendants(self._guard.pid)
            if process.pid not in daemons and process.parent_pid != self._daemons.get("slurmctld")
        ]

    def reset(self) -> None:
        """Cancel all jobs, end what is left of them, and bring every node back to idle."""
        if jobs := self.run("squeue", "--noheader", "--format=%A").stdout.split():
            self.run("scancel", *jobs, check=False)
        for node in self.nodes:
            if not is_alive(self._daemons[node]):
                self._start_slurmd(node)
        self.wait(self._is_drained, "the queue and the nodes are empty")
        for node in self.nodes:
            self.resume(node)

    def wait(self, met: Callable[[], bool], what: str, *, timeout: float = 60.0) -> None:
        """Wait until a condition is met; say what was waited for when it is not."""
        began = time.monotonic()
        least, most = POLL_SECONDS
        while not met():
            elapsed = time.monotonic() - began
            if elapsed > timeout:
                raise ClusterError(f"not within {timeout:g} s: {what}\n{self._daemon_logs()}")
            time.sleep(min(most, max(least, elapsed / 10)))

    def _start(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        controller_port, unused_port, *node_ports = free_ports(2 + len(self.nodes))
        self._layout = replace(
            self._layout,
            folder=folder,
            controller_port=controller_port,
            unused_port=unused_port,
            node_ports=tuple(node_ports),
        )
        self._guard = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.guard", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            env={"PATH": _path()},
            start_new_session=True,
        )
        write_files(self._layout)
        self._ask(hosts=self.addresses)
        self._start_munged()
        self._daemons["slurmctld"] = self._start_daemon("slurmctld", "-D", "-i")
        for node in self.nodes:
            self._start_slurmd(node)
        self.wait(self._is_idle, "all nodes are idle", timeout=START_SECONDS)
        self._free_cores()

    def _start_munged(self) -> None:
        paths = {
            "key-file": "munge.key",
            "socket": "munge.socket",
            "pid-file": "munged.pid",
            "seed-file": "munge.seed",
            "log-file": "log/munged.log",
        }
        options = [f"--{option}={self.folder / path}" for option, path in paths.items()]
        self._daemons["munged"] = self._start_daemon("munged", "--foreground", "--num-threads=2", *options)
        socket_path = self.folder / "munge.socket"
        self.wait(lambda: self._all_live() and socket_path.exists(), "munged listens", timeout=START_SECONDS)

    def _start_slurmd(self, node: str) -> None:
        self._daemons[node] = self._start_daemon("slurmd", "-D", "-N", node, PRIVATE_SLURM_NODE=node)

    def _free_cores(self) -> None:
        """Give slurmd this machine's cores back: it pins itself, and so every rank, to the reserved one."""
        for node in filter(lambda node: is_alive(self._daemons[node]), self.nodes):
            for task in Path(f"/proc/{self._daemons[node]}/task").iterdir():
                os.sched_setaffinity(int(task.name), os.sched_getaffinity(0))

    def _start_daemon(self, *argv: str, **environ: str) -> int:
        settings = {"PATH": _path(), "SLURM_CONF": str(self.conf), **environ}
        return int(self._ask(start=argv, environ=settings)["pid"])

    def _ask(self, **message: Any) -> dict[str, Any]:
        if self._guard is None or self._guard.stdin is None or self._guard.stdout is None:
            raise ClusterError("the cluster is not running; start it first")
        self._guard.stdin.write(json.dumps(message).encode() + b"\n")
        self._guard.stdin.flush()
        answer = self._guard.stdout.readline()
        if not answer:
            raise ClusterError(f"the guard of the cluster ended with {self._guard.wait()}")
        return dict(json.loads(answer))

    def _is_idle(self) -> bool:
        self._all_live()
        nodes = f"--nodes={','.join(self.nodes)}"
        listed = self.run("sinfo", "--noheader", "--Node", nodes, "--format=%N %T", check=False).stdout.splitlines()
        return set(listed) == {f"{node} idle" for node in self.nodes}

    def _is_drained(self) -> bool:
        # A step ends when its tasks are gone and nobody holds its output open, so it needs no kill itself.
        left = self.processes()
        for process in left:
            if process.name != "slurmstepd":
                kill(process.pid)
        return not left and not self.run("squeue", "--noheader").stdout

    def _all_live(self) -> bool:
        dead = [name for name, pid in self._daemons.items() if not is_alive(pid)]
        if dead:
            raise ClusterError(f"{', '.join(dead)} ended while starting\n{self._daemon_logs('*.log', '*d.out')}")
        return True

    def _daemon_logs(self, *patterns: str) -> str:
        paths = [path for pattern in patterns or ("*.log",) for path in sorted(self._logs.glob(pattern))]
        return "\n".join(f"--- {path.name}\n{tail(path)}" for path in paths)


def _path() -> str:
    # Debian's daemons are in sbin, which a user's PATH may lack.
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
