"""Start a container's command, pass signals on to it, and leave nothing behind.

The process that was called waits and passes signals on, as the real program does. Its child keeps the
container: what the command leaves running becomes the keeper's and is killed with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence

from . import hiding, inside
from .errors import Fatal, Usage
from .image import Image, read
from .options import Options, parse

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# Told by the kernel when the caller is gone.
ORPHANED = signal.SIGUSR2
NOT_PASSED = {signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH}
_libc = ctypes.CDLL(None)


def main(words: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    if list(words) == ["--version"]:
        print("singularity-ce version 4.1.3-stand-in")
        return 0
    try:
        environ = _environ()
        options = parse(words, environ)
        image = read(options.image)
        argv = _bubblewrap(options, image, environ)
        variables = inside.variables(options, image, environ)
    except Usage as error:
        print(f'Error for command "{words[0] if words else ""}": {error}', file=sys.stderr)
        return 1
    except Fatal as error:
        print(f"FATAL:   {error}", file=sys.stderr)
        return 255
    _tell_drivers(options)
    return _run(image, argv, variables)


def _environ() -> dict[str, str]:
    # As it was given: in the C locale Python adds LC_CTYPE to its own.
    with open("/proc/self/environ", "rb") as file:
        pairs = (os.fsdecode(pair).partition("=") for pair in file.read().split(b"\0"))
        return {name: value for name, equals, value in pairs if equals}


def _bubblewrap(options: Options, image: Image, environ: Mapping[str, str]) -> list[str]:
    program = shutil.which("bwrap")
    if program is None:
        raise Fatal("bwrap not found; install with: tools/install-slurm")
    words = [program, *inside.mounts(options, image, environ, os.getcwd()), "--die-with-parent"]
    if "pid" in options.flags:
        words += ["--unshare-pid", "--proc", "/proc"]
    return [*words, "--", *inside.command(options, image)]


def _tell_drivers(options: Options) -> None:
    for flag, device in (("nv", "/dev/nvidiactl"), ("rocm", "/dev/kfd")):
        if flag in options.flags and not os.path.exists(device):
            print(f"INFO:    Could not find any {flag} files on this host!", file=sys.stderr, flush=True)


def _run(image: Image, argv: list[str], environ: dict[str, str]) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())}
    reader, writer = os.pipe()
    caller = os.getpid()
    keeper = os.fork()
    if not keeper:
        os.close(reader)
        os._exit(_keep(image, argv, environ, caller, writer, before))
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    # {"child-pid": 4711 …}; nothing when bubblewrap could not start.
    command = json.loads(text)["child-pid"] if text else None
    while True:
        number = signal.sigwait(signal.valid_signals())
        if number == signal.SIGCHLD:
            ended, status = os.waitpid(keeper, os.WNOHANG)
            if ended:
                return _exit_code(status)
        elif command and number not in NOT_PASSED:
            _send(command, number)


def _keep(image: Image, argv: list[str], environ: dict[str, str], caller: int, writer: int, before: set[int]) -> int:
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _libc.prctl(PR_SET_PDEATHSIG, int(ORPHANED), 0, 0, 0)
    if os.getppid() != caller:
        return 255
    started = os.fork()
    if not started:
        try:
            _become(image, argv, environ, writer, before)
        except Fatal as error:
            print(f"FATAL:   {error}", file=sys.stderr, flush=True)
        os._exit(255)
    os.close(writer)
    while True:
        number = signal.sigwait({signal.SIGCHLD, ORPHANED})
        if number == ORPHANED and os.getppid() == caller:
            continue
        code = 255 if number == ORPHANED else _reap(started)
        if code is not None:
            _kill_rest()
            return code


def _become(image: Image, argv: list[str], environ: dict[str, str], writer: int, before: set[int]) -> None:
    hiding.hide(image)
    os.set_inheritable(writer, True)
    # Python ignores these two; a command expects them as they are in a shell.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.execve(argv[0], [argv[0], "--info-fd", str(writer), *argv[1:]], environ)


def _reap(started: int) -> int | None:
    """Collect what has ended; return the exit code if the command was among it."""
    code = None
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == started:
                code = _exit_code(ended[1])
    except ChildProcessError:
        pass
    return code


def _kill_rest() -> None:
    while children := _children(os.getpid()):
        for pid in children:
            _send(pid, signal.SIGKILL)
        # One of the killed; its own children are this process's then, and next.
        os.waitpid(-1, 0)


def _children(parent: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    after = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(after[1]) == parent:
                found.append(int(name))
    return found


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _exit_code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
