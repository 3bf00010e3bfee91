"""Prove many scripts from one process that has imported torch once: its ranks are forks, as those of a warm start are.

`echelon prove` itself runs, unchanged; only what stands for the machine does not start programs but forks.
"""

import atexit
import gc
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, cast

import torch
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.nn.functional
import torch.distributed.tensor
from tests import huge_pages

from echelon.errors import EchelonError
from echelon.host import Finished, Host
from echelon.train.recording import observe
from echelon.trials import prove
from echelon.trials.proof import compare

NUM_RANKS, NUM_STEPS, SECONDS = 2, 12, 60.0
PORTS = 5  # that are tried, one after the other
NO_ANSWER = {"verdict": "error", "why": "no answer", "meaning": "", "tensor": ""}


@dataclass
class Ranks:
    """Ranks that are forks of this process, as a program that was started."""

    command: list[str]
    returncode: int = 0
    _ranks: dict[int, int] = field(default_factory=dict)
    _log: str = ""

    def communicate(self, timeout: float = SECONDS) -> tuple[bytes, None]:
        """Fork the ranks, and wait for them; a port that somebody else has taken meanwhile is tried no second time."""
        variables, num_ranks, script = _asked(self.command)
        for _ in range(PORTS):
            self._start(variables, num_ranks, script)
            said = self._wait(timeout)
            if not self.returncode or b"EADDRINUSE" not in said:
                break
            for left in Path(json.loads(variables["ECHELON_RECORD"])["folder"]).iterdir():
                left.unlink()
        return said, None

    def _start(self, variables: Mapping[str, str], num_ranks: int, script: str) -> None:
        self._log = tempfile.mkdtemp(dir=os.getcwd())
        world = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        for rank in range(num_ranks):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            self._ranks[_fork_rank({**variables, **world, **place}, script, self._log)] = rank

    def _wait(self, timeout: float) -> bytes:
        """Return what the rank said that failed first, or rank 0; who fails ends the others."""
        failed = -1
        deadline = time.monotonic() + timeout
        while self._ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid:
                rank = self._ranks.pop(pid)
                if status and failed < 0:
                    failed, deadline = rank, time.monotonic() + 1.0
            elif time.monotonic() > deadline:
                self.kill()
                failed = max(failed, 0)
            else:
                time.sleep(0.005)
        self.returncode = int(failed >= 0)
        return Path(self._log, str(max(failed, 0))).read_bytes()

    def kill(self) -> None:
        """End what is left."""
        for pid in self._ranks:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Pass a signal on."""
        for pid in self._ranks:
            os.kill(pid, number)


class WarmHost(Host):
    """A machine on which `echelon run` needs no import."""

    def ask(self, argv: Sequence[str], *, timeout_seconds: float, environ: Mapping[str, str] | None = None) -> Finished:
        """Compare records here; a dry run finds nothing."""
        said = StringIO()
        if "echelon.trials.proof.compare" in argv:
            with redirect_stdout(said):
                compare.main(list(argv[argv.index("echelon.trials.proof.compare") + 1 :]))
        return Finished(exit_code=0, stdout=said.getvalue(), stderr="")

    def start(self, argv: Sequence[str], *, environ: Mapping[str, str], folder: str = "") -> Any:
        """Start the ranks of an `echelon run`."""
        return Ranks(list(argv))


def _asked(command: list[str]) -> tuple[dict[str, str], int, str]:
    """Return the variables, the number of ranks, and the script of a command line."""
    words = iter(command)
    variables: dict[str, str] = {}
    num_ranks = 1
    for word in words:
        if word == "--env":
            name, _, value = next(words).partition("=")
            variables[name] = value
        elif word == "-n":
            num_ranks = int(next(words))
    return variables, num_ranks, command[-1]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return cast(int, free.getsockname()[1])


def _fork_rank(variables: Mapping[str, str], script: str, log: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        descriptor = os.open(os.path.join(log, variables["RANK"]), os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.environ.update(variables, GLOO_SOCKET_IFNAME="lo")
        atexit._clear()  # what is registered is the parent's
        torch.set_num_threads(1)
        observe.begin(os.environ)
        sys.argv = [script]
        runpy.run_path(script, run_name="__main__")
        code = 0
    except BaseException:  # noqa: BLE001 (whatever the script raises, also SystemExit, ends this rank alone)
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        atexit._run_exitfuncs()
        os._exit(code)


def judged(script: str) -> dict[str, Any]:
    """Return what `echelon prove` says of a script."""
    question = prove.ProofQuestion(
        options=(), options_of_several=(), options_of_one=(), script=os.path.abspath(script), arguments=(),
        is_module=False, num_ranks=NUM_RANKS, num_steps=NUM_STEPS, scales=("off",),
    )  # fmt: skip
    try:
        (run,) = prove.prove(question, WarmHost(), lambda _: None)["runs"]
    except EchelonError as error:
        return {**NO_ANSWER, "why": error.message, "meaning": error.hint}
    return {key: run.get(key, "") for key in NO_ANSWER}


def serve(scripts: Sequence[str], num_at_once: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each script with what is said of it, some at a time."""
    waiting = list(scripts)
    pipes: dict[int, tuple[str, int]] = {}
    while waiting or pipes:
        while waiting and len(pipes) < num_at_once:
            script = waiting.pop(0)
            reading, pid = _fork_judge(script)
            pipes[reading] = (script, pid)
        ready, _, _ = select.select(list(pipes), [], [])
        for reading in ready:
            script, pid = pipes.pop(reading)
            with os.fdopen(reading) as pipe:
                content = pipe.read()
            os.waitpid(pid, 0)
            yield script, json.loads(content) if content else NO_ANSWER


def _fork_judge(script: str) -> tuple[int, int]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return reading, pid
    try:
        os.close(reading)
        folder = tempfile.tempdir = tempfile.mkdtemp()  # what scripts leave is removed with it
        os.chdir(folder)
        result = judged(script)
        shutil.rmtree(folder)
        with os.fdopen(writing, "w") as pipe:
            json.dump(result, pipe)
    except BaseException:  # noqa: BLE001 (a fork must never go on as its parent)
        traceback.print_exc()
    finally:
        os._exit(0)


def main(argv: list[str]) -> int:
    """Print a JSON line for each script."""
    torch.set_num_threads(1)
    gc.freeze()  # a collection in a fork would otherwise touch, and so copy, every page
    huge_pages.collapse()
    for script, result in serve([os.path.abspath(one) for one in argv], 2):
        print(json.dumps({"script": script, **result}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
