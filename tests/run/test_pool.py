"""A pool keeps imports ready between runs, and nothing else of them: what a run does never reaches the next one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.tiers import pick, product

from .shell import Done, Shell, wait_until


class PoolShell:
    """A shell whose runs ask a pool of their own."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        shell.environ["ECHELON_POOL"] = "pools"
        self.folder = shell.folder / "pools" / f"echelon-pool-{os.geteuid()}-here"

    def command(self, *words: str) -> Done:
        """Run `echelon pool`."""
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "echelon", "pool", *words],
            cwd=self.shell.folder, env=self.shell.environ, capture_output=True, check=False, timeout=60,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - began)

    def status(self) -> dict[str, Any]:
        """Return what the pool of this machine says of itself."""
        (node,) = json.loads(self.command("status", "--json").stdout)["nodes"]
        return dict(node)

    def run(self, *words: str, **environ: str) -> Done:
        """Run a script from the pool, and check that it was."""
        done = self.shell.run(*words, **environ)
        assert self.imported()["is_pooled"], done.said
        return done

    def imported(self) -> dict[str, Any]:
        """Return what the newest run says of its imports."""
        newest = max(self.shell.files("echelon-runs/*/events.jsonl"), key=lambda path: path.stat().st_ctime_ns)
        lines = newest.read_text().splitlines()
        (event,) = [event for event in map(json.loads, lines) if event["event"] == "imported"]
        return dict(event)


@pytest.fixture
def pool(shell: Shell) -> Iterator[PoolShell]:
    """Give a test a shell with a pool."""
    pooled = PoolShell(shell)
    done = pooled.command("start", "--idle", "5m")
    assert done.exit_code == 0, done.said
    yield pooled
    pooled.command("stop")
    wait_until(lambda: not pooled.folder.exists())


SHOWN = """
import decimal, json, os, resource, signal, subprocess, sys, threading
OF_RUN = ("ECHELON_", "MASTER_", "TORCHELASTIC_", "JAX_", "TF_CONFIG")
def state():
    umask = os.umask(0); os.umask(umask)
    return {
        "argv": sys.argv, "name": __name__, "file": __file__, "cwd": os.getcwd(), "umask": umask, "path": sys.path[0],
        "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))), "limit": resource.getrlimit(7),
        "handlers": [str(signal.getsignal(number)) for number in (2, 10, 15, 17)],
        "files": len(os.listdir("/proc/self/fd")), "threads": threading.active_count(),
        "environ": {name: value for name, value in os.environ.items() if not name.startswith(OF_RUN)},
        "json": json.dumps is not None, "decimal": decimal.getcontext().prec, "recursion": sys.getrecursionlimit(),
        "session": os.getsid(0) == os.getpid(), "main": sorted(vars(sys.modules["__main__"])),
    }
"""
DEEDS = {
    "crash": "import ctypes; ctypes.string_at(0)",
    "leave": "os._exit(3)",
    "folder": "os.chdir('/'); os.umask(0o077)",
    "signals": "signal.pthread_sigmask(signal.SIG_BLOCK, [10, 12]); signal.signal(15, signal.SIG_IGN)",
    "variables": "os.environ['LEFT'] = '1'; os.environ.pop('HOME'); sys.path.insert(0, '/left')",
    "modules": "json.dumps = None; decimal.getcontext().prec = 3; sys.setrecursionlimit(5000)",
    "limits": "resource.setrlimit(7, (64, resource.getrlimit(7)[1])); kept = [open('/dev/null') for _ in range(9)]",
    "children": "subprocess.Popen(['sleep', '300'], start_new_session=True)",
}


def test_nothing_of_a_run_reaches_the_next(pool: PoolShell) -> None:
    """A run is like a run without a pool, whatever the run before did; and nothing of that one is left."""
    deeds = "".join(f"if sys.argv[1] == '{name}':\n    {deed}\n" for name, deed in DEEDS.items())
    pool.shell.script(f"{SHOWN}{deeds}if sys.argv[1] == 'a':\n    json.dump(state(), open('state.json', 'w'))\n")
    pool.shell.run("--no-pool", "train.py", "a", "-b")
    assert not pool.imported()["is_pooled"]
    alone = json.loads((pool.shell.folder / "state.json").read_text())
    for deed in DEEDS:
        pool.run("train.py", deed)
        assert not [line for line in pool.shell.processes() if "sleep 300" in line]
        pool.run("train.py", "a", "-b")
        assert json.loads((pool.shell.folder / "state.json").read_text()) == alone, deed
    (template,) = pool.status()["templates"]
    assert template["runs"] == 2 * len(DEEDS)


def test_changed_module_is_imported_anew(pool: PoolShell) -> None:
    """A package that was changed between two runs, installed beside the script's folder, has its new content."""
    package = pool.shell.folder / "site-packages" / "helpers.py"
    package.parent.mkdir()
    pool.shell.environ["PYTHONPATH"] += f":{package.parent}"
    pool.shell.script("import helpers\nprint(helpers.VALUE)\n")
    for value in (1, 1, 22):
        package.write_text(f"VALUE = {value}\n")
        assert pool.run("train.py").stdout == f"{value}\n".encode()


def test_own_module_and_arguments_are_those_of_the_run(pool: PoolShell) -> None:
    """A module beside the script is imported by each run, and another script or -m has imports of its own."""
    for value in (1, 22):
        pool.shell.script(f"VALUE = {value}\n", "beside.py")
        pool.shell.script("import beside, sys\nprint(beside.VALUE, sys.argv[1:], sys.orig_argv[1:])\n")
        wanted = f"{value} ['{value}', '--x'] ['train.py', '{value}', '--x']\n"
        assert pool.run("train.py", str(value), "--x").stdout == wanted.encode()
    assert pool.run("-m", "train", "3").stdout == b"22 ['3'] ['-m', 'train', '3']\n"
    assert len(pool.status()["templates"]) == 2


def test_import_that_forbids_a_fork(pool: PoolShell) -> None:
    """A module that starts a thread when it is imported: ranks are started anew, and the run says why."""
    package = pool.shell.folder / "site-packages" / "busy.py"
    package.parent.mkdir()
    package.write_text("import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n")
    pool.shell.environ["PYTHONPATH"] += f":{package.parent}"
    pool.shell.script("import busy\nprint('here')\n")
    done = pool.shell.run("train.py")
    assert (done.exit_code, done.stdout) == (0, b"here\n")
    assert "started a new process for each rank, without a fork: an import started threads" in done.said


def test_what_imports_write_is_written_by_each_run(pool: PoolShell) -> None:
    """A warning of an import is in the output of each run."""
    package = pool.shell.folder / "site-packages" / "loud.py"
    package.parent.mkdir()
    package.write_text("import sys\nsys.stderr.write('loud is old\\n')\n")
    pool.shell.environ["PYTHONPATH"] += f":{package.parent}"
    pool.shell.script("import loud\n")
    for _ in range(2):
        assert pool.run("train.py").said.count("loud is old") == 1


WAITING = """
import pathlib, time
pathlib.Path('begun').touch()
while not pathlib.Path('go').exists():
    time.sleep(0.02)
"""


def test_killed_pool(pool: PoolShell) -> None:
    """A run goes on when its pool is killed; later runs import by themselves; a new pool takes the place."""
    pool.shell.script(WAITING)
    with pool.shell.start("train.py") as process:
        wait_until((pool.shell.folder / "begun").exists)
        os.kill(pool.status()["pid"], signal.SIGKILL)
        (pool.shell.folder / "go").touch()
        assert process.wait(20) == 0
    assert pool.shell.run("train.py").exit_code == 0
    assert not pool.imported()["is_pooled"]
    assert pool.command("status").stdout == b"no pool: echelon pool start\n"
    assert pool.command("start").exit_code == 0
    pool.run("train.py")


def test_pool_of_another_user(shell: Shell) -> None:
    """A folder in which others may write is no pool: no run asks there, and none is started."""
    pooled = PoolShell(shell)
    pooled.folder.mkdir(parents=True)
    (pooled.folder / "theirs").touch()
    pooled.folder.chmod(0o777)
    done = pooled.command("start")
    assert (done.exit_code, done.said.count("belongs to another user")) == (1, 1)
    shell.script("print('here')\n")
    assert shell.run("train.py").stdout == b"here\n"
    assert not pooled.imported()["is_pooled"]


def test_nothing_but_a_pools_own_files_is_removed(shell: Shell) -> None:
    """A folder of the user with the name of a pool is refused, and stays."""
    pooled = PoolShell(shell)
    pooled.folder.mkdir(parents=True)
    (pooled.folder / "model.pt").write_text("precious")
    done = pooled.command("start")
    assert (done.exit_code, "has model.pt, which is no pool's" in done.said) == (1, True)
    assert (pooled.folder / "model.pt").read_text() == "precious"


def test_large_environment(pool: PoolShell) -> None:
    """An environment that is larger than a packet between processes travels too."""
    pool.shell.script(
        "import os\nprint(sum(len(value) for name, value in os.environ.items() if name.startswith('BIG')))\n"
    )
    large = {f"BIG{number}": "x" * 100_000 for number in range(5)}
    assert pool.run("train.py", **large).stdout == b"500000\n"


def test_killed_fork_leaves_nothing(pool: PoolShell) -> None:
    """When the fork that a run has of the pool is killed, a process that left its rank's session ends with it."""
    pool.shell.script(DAEMON)
    done = pool.shell.run("train.py")
    assert done.exit_code != 0
    wait_until(lambda: not [line for line in pool.shell.processes() if "train.py" in line and "python" in line][1:])
    assert pool.status()["templates"][0]["is_ready"]


def test_package_that_was_missing(pool: PoolShell) -> None:
    """A package that is installed between two runs is there in the second one, although an import did without it."""
    packages = pool.shell.folder / "site-packages"
    packages.mkdir()
    (packages / "main.py").write_text("try:\n    import extra\nexcept ImportError:\n    extra = None\n")
    pool.shell.environ["PYTHONPATH"] += f":{packages}"
    pool.shell.script("import main\nprint(main.extra is not None)\n")
    assert pool.run("train.py").stdout == b"False\n"
    (packages / "extra.py").touch()
    assert pool.run("train.py").stdout == b"True\n"


def test_module_that_an_import_writes(pool: PoolShell) -> None:
    """A module in a folder of tempfile, which an import writes and removes, as PyTorch 2.6 does, is no change."""
    packages = pool.shell.folder / "site-packages"
    packages.mkdir()
    (packages / "writes.py").write_text(WRITES)
    pool.shell.environ["PYTHONPATH"] += f":{packages}"
    pool.shell.script("import writes\n")
    for _ in range(3):
        pool.run("train.py")
    (template,) = pool.status()["templates"]
    assert template["runs"] >= 2  # the first import has also written bytecode, so the second run imports once more
    assert pool.status()["runs"] == 3


WRITES = """
import importlib.util, os, tempfile
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "written.py")
    with open(path, "w") as file:
        file.write("VALUE = 1")
    spec = importlib.util.spec_from_file_location("written", path)
    import sys
    sys.modules["written"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["written"])
"""


def test_another_group(pool: PoolShell) -> None:
    """A run with another group imports by itself, and says why."""
    pool.shell.script("import os\nprint(os.getgid())\n")
    words = [sys.executable, "-m", "echelon", "run", "train.py"]
    done = subprocess.run(
        words, cwd=pool.shell.folder, env=pool.shell.environ, capture_output=True, check=False, timeout=60, group=100
    )
    assert done.stdout == b"100\n"
    assert b"is not used: it has another group or rights than this run" in done.stderr


DAEMON = """
import os, signal, time
parent = os.getppid()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(100)
time.sleep(0.3)
os.kill(parent, signal.SIGKILL)
time.sleep(100)
"""


def test_two_pools_at_once(shell: Shell) -> None:
    """Of pools that are started at once, also where a killed one lies, one is there, and the others say so."""
    pooled = PoolShell(shell)
    for _ in range(3):
        words = [sys.executable, "-m", "echelon", "pool", "start"]
        started = [
            subprocess.Popen(words, cwd=shell.folder, env=shell.environ, stderr=subprocess.PIPE) for _ in range(3)
        ]
        said = [process.communicate(timeout=60)[1].decode() for process in started]
        assert sorted(process.returncode for process in started) == [0, 1, 1], said
        assert sum("a pool is there already" in text for text in said) == 2
        os.kill(pooled.status()["pid"], signal.SIGKILL)
        wait_until(lambda: pooled.command("status").exit_code)
    assert shell.files("pools/*") == [pooled.folder]
    pooled.command("start")
    pooled.command("stop")
    wait_until(lambda: not shell.files("pools/*"))


def test_pool_ends_without_runs(shell: Shell) -> None:
    """It ends after the idle time, and leaves nothing."""
    pooled = PoolShell(shell)
    shell.script("import time\ntime.sleep(6.5)\n")
    assert pooled.command("start", "--idle", "6").exit_code == 0
    pooled.run("train.py")  # which takes longer than the idle time; on a busy machine it asks seconds after the start
    wait_until(lambda: not pooled.folder.exists())
    wait_until(lambda: not shell.processes())


@pytest.mark.timeout(900)
def test_many_runs(pool: PoolShell) -> None:
    """Its memory, its open files and its processes stay as they are."""
    pool.shell.script("import json\nprint('here')\n")

    def used() -> tuple[int, int, int]:
        pid, template = pool.status()["pid"], pool.status()["templates"][0]
        files = len(os.listdir(f"/proc/{pid}/fd")) + len(os.listdir(f"/proc/{template['pid']}/fd"))
        return files, round(template["own_bytes"]) >> 20, len(pool.shell.processes())

    pool.run("-n", "2", "train.py")
    before = used()
    for _ in range(pick(8, all=100)):
        pool.run("-n", "2", "train.py")
    wait_until(lambda: used() == before)


@product(
    words=[["go"], [], ["start", "stop"], ["stop", "--idle", "5m"], ["start", "--json"], ["start", "--idle", "soon"]]
)
def test_wrong_words(shell: Shell, words: list[str]) -> None:
    """They are one error with a way out, and exit code 2."""
    done = PoolShell(shell).command(*words)
    assert done.exit_code == 2
    assert done.said.startswith("echelon: error: ")
    assert "\n  hint: " in done.said
