"""A machine on which Python has imported torch before it starts: what `echelon` starts here are forks of one process.

The command, its agent, the warm process and the ranks are processes of their own, with their own environment, output,
session and signals, and they run the code that they always run. Only the start of an interpreter is left out.
"""

import atexit
import builtins
import gc
import importlib
import io
import itertools
import os
import pkgutil
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, TracebackType
from typing import IO, Any, NoReturn

from tests import packed
from tests.warm import MARK

import echelon.host
from echelon.host import Finished, Host

COMMANDS = ("cli", "launch", "lint", "checks")
"""The rooms of which `echelon` imports what it needs."""
OURS = ("echelon", "_echelon", "sitecustomize", "tests")


def import_commands() -> None:
    """Import what each `echelon` would import; what that starts are forks from here on."""
    echelon.host.Host = WarmHost  # type: ignore[misc]
    for room in COMMANDS:
        package = importlib.import_module(f"echelon.{room}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)


class Forked:
    """A process that was forked, as subprocess.Popen shows one."""

    def __init__(self, pid: int, stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._look(os.WNOHANG)

    def wait(self) -> int | None:
        """Wait for its end."""
        return self._look(0)

    def _look(self, how: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[bytes, None]:
        """Read what it writes, to its end."""
        said = self.stdout.read()
        self.wait()
        return said, None

    def send_signal(self, number: int) -> None:
        """Send a signal, if it is still there."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


class WarmHost(Host):
    """Forks where a Python is to be started."""

    def start(self, argv: Sequence[str], *, environ: Mapping[str, str], folder: str = "") -> Any:
        """Start an agent, or another `echelon`."""
        if argv[0] != sys.executable:
            return super().start(argv, environ=environ, folder=folder)
        reading, writing = os.pipe()
        pid = _fork()
        if not pid:
            os.setsid()
            os.chdir(folder or os.curdir)
            become([word for word in argv[1:] if word not in ("-I", "-S")], environ, [writing, writing])
        os.close(writing)
        return Forked(pid, os.fdopen(reading, "rb"))

    def ask(self, argv: Sequence[str], *, timeout_seconds: float, environ: Mapping[str, str] | None = None) -> Finished:
        """Run a program to its end."""
        if argv[0] != sys.executable or argv[1] != "-m":
            return super().ask(argv, timeout_seconds=timeout_seconds, environ=environ)
        outputs = [os.memfd_create(name) for name in ("out", "err")]
        pid = _fork()
        if not pid:
            become(argv[1:], self.environ if environ is None else environ, outputs)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said = [os.pread(one, os.fstat(one).st_size, 0).decode() for one in outputs]
        for one in outputs:
            os.close(one)
        return Finished(exit_code=code, stdout=said[0], stderr=said[1])


def become(words: Sequence[str], environ: Mapping[str, str], outputs: Sequence[int]) -> NoReturn:
    """Be a Python that was started with these words; never return."""
    code: Any = 70
    try:
        kept = int(environ.get("ECHELON_WARM_FD", "-1"))
        for descriptor, output in enumerate((os.open(os.devnull, os.O_RDONLY), *outputs)):
            os.dup2(output, descriptor)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor != kept:
                _close(descriptor)
        gc.freeze()  # what the parent left would close, when it is collected, descriptors that are others here
        wanted = dict(environ)  # it may be os.environ itself
        os.environ.clear()
        os.environ.update(wanted)
        _forget_signals()
        sys.excepthook = sys.__excepthook__  # that of a command is not that of what it starts
        atexit._clear()  # what is registered is the parent's
        code = _exit_code_of(lambda: _run(list(words)))
    finally:
        os._exit(code)


def _run(words: list[str]) -> None:
    """Run what comes after `python` on a command line, and before it what a start hook does."""
    is_module = words[0] == "-m"
    sys.argv = words[is_module:]
    sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.abspath(words[0]))
    sys.path[1:1] = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    if "ECHELON_LIVE" in os.environ:
        _run_start_hook(os.environ["PYTHONPATH"].split(os.pathsep)[0])
    if words[:2] == ["-m", "echelon"]:
        runpy.run_module("echelon", run_name="__main__", alter_sys=True)
    elif is_module:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif os.path.isdir(words[0]):
        runpy.run_path(words[0], run_name="__main__")
    elif words[0].endswith(".pyz"):
        _let_agent_fork(words[0])
        runpy.run_path(words[0], run_name="__main__")
    else:
        _run_script(os.path.abspath(words[0]))


def _run_script(path: str) -> None:
    """Run a script as `python path` does: it knows its whole path, and sys.argv has what was typed."""
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec")
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = path
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    exec(code, vars(main))


def _run_start_hook(archive: str) -> None:
    """Do what site.py does for a Python with this PYTHONPATH; in the ranks this returns."""
    later = itertools.takewhile(lambda name: name != MARK, reversed(sys.modules))  # each name is on a page to copy
    for name in ["tests", "sitecustomize", MARK, *(name for name in later if name.partition(".")[0] in OURS)]:
        sys.modules.pop(name, None)  # a new interpreter would not have them
    modules = packed.of_scaled_rank if "ECHELON_SCALE" in os.environ else packed.of_rank
    theirs = os.environ.get("ECHELON_PYTHONPATH", "").split(os.pathsep)
    if any(os.path.exists(os.path.join(place, "sitecustomize.py")) for place in theirs if place):
        # it may change PyTorch before they are imported; but what has looked through PyTorch need not look again
        modules = {name: module for name, module in modules.items() if name == packed.LOOKER}
    packed.restore(archive, modules)
    sys.path.insert(0, archive)  # before a sitecustomize of the script
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise


def _let_agent_fork(archive: str) -> None:
    """Have the agent start its warm process by a fork."""
    sys.path.insert(0, archive)
    packed.restore(archive, packed.of_agent)
    from _echelon.node import warm_process  # type: ignore[import-not-found]

    spawn = warm_process.spawn

    def fork(argv: list[str], environ: Mapping[str, str], stdin: int, stdout: int, stderr: int) -> int:
        if argv[0] != sys.executable or "-c" in argv:
            started: int = spawn(argv, environ, stdin, stdout, stderr)
            return started
        pid = _fork()
        if not pid:
            os.setsid()
            become(argv[1:], environ, [stdout, stderr])
        return pid

    warm_process.spawn = fork


def _without_starters(trace: TracebackType | None) -> TracebackType | None:
    """Leave out the frames by which this module has started a script: those of Python itself are no frames."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
        trace = trace.tb_next
    return trace


def _fork() -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    return os.fork()


def _forget_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not None:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        pass  # it was that of the folder that was listed


def _exit_code_of(program: Callable[[], None]) -> int:
    """Run a program to its end as Python does."""
    code = 0
    try:
        try:
            program()
        finally:
            threading._shutdown()  # type: ignore[attr-defined]
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(end.code + "\n")
    except BaseException as error:  # noqa: BLE001 (a fork must never go on as its parent)
        error.__traceback__ = _without_starters(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code
