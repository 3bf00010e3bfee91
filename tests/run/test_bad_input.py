"""Bad input: one clear error on standard error, exit code 2, and nothing started."""

import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from .shell import Shell, wait_until

RANKS = "give a whole number of ranks per node, at least 1, or gpu, cpu or auto"
NODES = "give a number of at least 1, or MIN:MAX"
SHOWN = "give ranks, all or none"
TIME = "give seconds, or a number with m, h or d"
PORT = "give a port, a whole number from 1 to 65535"
LISTED = "echelon run --help lists them; the script's own come after it"
PROGRAM = "to start a program that is not Python write: echelon run -- {folder}/"

# arguments, message, hint; {folder} is where one stands
SCALES = "auto, off, data, fsdp, tensor, context, pipeline, auto-fit, or a class in a file: FILE.py:CLASS"

OPTIONS = [
    ("-n 0 train.py", "-n 0: " + RANKS, "echelon run -n 2 …"),
    ("-n -1 train.py", "-n -1: " + RANKS, "echelon run -n 2 …"),
    ("-n x train.py", "-n x: " + RANKS, "echelon run -n 2 …"),
    ("-n 1.5 train.py", "-n 1.5: " + RANKS, "echelon run -n 2 …"),
    ("-n 1e3 train.py", "-n 1e3: " + RANKS, "echelon run -n 2 …"),
    ("-n 99999999999 train.py", "-n 99999999999: " + RANKS, "echelon run -n 2 …"),
    ("-n '' train.py", "-n '': " + RANKS, "echelon run -n 2 …"),
    ("--nproc_per_node=0 train.py", "-n 0: " + RANKS, "echelon run -n 2 …"),
    ("-n train.py", "-n train.py: " + RANKS, "echelon run -n 2 …"),
    ("-n 2 --scale train.py", "--scale train.py: the choices are " + SCALES, "echelon run --scale auto …"),
    ("-n", "-n needs a value", "echelon run -n N …"),
    ("--nnodes 0 train.py", "--nnodes 0: " + NODES, "echelon run --nnodes 2 …"),
    ("--nnodes -1 train.py", "--nnodes -1: " + NODES, "echelon run --nnodes 2 …"),
    ("--nnodes two train.py", "--nnodes two: " + NODES, "echelon run --nnodes 2 …"),
    ("--nnodes 2:1 train.py", "--nnodes 2:1: " + NODES, "echelon run --nnodes 2 …"),
    ("--nnodes 1:2:3 train.py", "--nnodes 1:2:3: " + NODES, "echelon run --nnodes 2 …"),
    ("--nnodes '' train.py", "--nnodes '': " + NODES, "echelon run --nnodes 2 …"),
    ("--show 5- train.py", "--show 5-: " + SHOWN, "echelon run --show 0,4-7 …"),
    ("--show 3-1 train.py", "--show 3-1: " + SHOWN, "echelon run --show 0,4-7 …"),
    ("--show 0,,1 train.py", "--show 0,,1: " + SHOWN, "echelon run --show 0,4-7 …"),
    ("--show all,0 train.py", "--show all,0: " + SHOWN, "echelon run --show 0,4-7 …"),
    ("--show 1-99999999 train.py", "--show 1-99999999: " + SHOWN, "echelon run --show 0,4-7 …"),
    ("--show '' train.py", "--show '': " + SHOWN, "echelon run --show 0,4-7 …"),
    ("--timeout ten train.py", "--timeout ten: " + TIME, "--timeout 90m"),
    ("--timeout -1 train.py", "--timeout -1: " + TIME, "--timeout 90m"),
    ("--timeout 1w train.py", "--timeout 1w: " + TIME, "--timeout 90m"),
    ("--timeout inf train.py", "--timeout inf: " + TIME, "--timeout 90m"),
    ("--timeout '' train.py", "--timeout '': " + TIME, "--timeout 90m"),
    ("--max-restarts -1 train.py", "--max-restarts -1: give a whole number of at least 0", "--max-restarts 1"),
    ("--max-restarts x train.py", "--max-restarts x: give a whole number of at least 0", "--max-restarts 1"),
    ("--launch fork train.py", "--launch fork: the choices are warm, exec, tasks", "echelon run --launch warm …"),
    ("--visible mine train.py", "--visible mine: the choices are all, own", "echelon run --visible all …"),
    ("--env K train.py", "--env K: give a name, = and a value", "echelon run --env K=VALUE …"),
    ("--env =v train.py", "--env =v: give a name, = and a value", "echelon run --env NAME=VALUE …"),
    ("--env '' train.py", "--env '': give a name, = and a value", "echelon run --env NAME=VALUE …"),
    (
        "--env LOCAL_RANK=1 train.py",
        "--env LOCAL_RANK=1: LOCAL_RANK differs from rank to rank, so echelon sets it in each rank",
        "remove it, or choose another name than "
        "GROUP_RANK, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, RANK, ROLE_RANK, WORLD_SIZE",
    ),
    ("--frobnicate train.py", "echelon has no option --frobnicate", LISTED),
    ("-q train.py", "echelon has no option -q", LISTED),
    ("--lunch exec train.py", "echelon has no option --lunch", "did you mean --launch?"),
    ("--tiemout 5 train.py", "echelon has no option --tiemout", "did you mean --timeout or --hang-timeout?"),
    ("--dry-run=1 train.py", "--dry-run takes no value, but got '1'", "echelon run --dry-run …"),
    ("--dry-run --timeout ten train.py", "--timeout ten: " + TIME, "--timeout 90m"),
    ("--json train.py", "--json prints the plan of a --dry-run; add --dry-run", "echelon run --dry-run --json …"),
    ("-m -- true", "-m names a module, and -- a program: use only one of them", "echelon run -m MODULE …"),
    (
        "-n 3 --scale data --exact 8 train.py", "--exact 8 needs 1, 2, 4 or 8 ranks, but the run has 3",
        "echelon run -n 2 --exact 8 …",
    ),
    (
        "--scale data --run-dir /tmp/a:b train.py",
        "echelon cannot scale a script from the run directory /tmp/a:b: PYTHONPATH cannot hold a folder with a ':' in "
        "its name, so each rank would train by itself",
        "echelon run --run-dir /tmp/run …   or a working directory without a colon",
    ),
    ("--run-dir '' train.py", "--run-dir '': give the name of a directory", "echelon run --run-dir first …"),
]  # fmt: skip

SCRIPTS = [
    ("", "the command line has no script", "echelon run -n 2 train.py"),
    ("--", "the command line has no script", "echelon run -n 2 train.py"),
    ("--no-python", "the command line has no script", "echelon run -n 2 train.py"),
    ("''", "the script has an empty name", "echelon run train.py"),
    ("-m ''", "the script has an empty name", "echelon run train.py"),
    ("nothere.py", "there is no script nothere.py in {folder}", "ls {folder}"),
    (
        "trian.py",
        "there is no script trian.py in {folder}; the nearest names there are train.py",
        "echelon run train.py",
    ),
    ("sub/train.py", "there is no script sub/train.py: {folder}/sub is no folder", "ls -d */"),
    ("linked.py", "linked.py is a link to gone.py, which does not exist", "ls -l gone.py"),
    (
        "folder",
        "folder is a folder without __main__.py; the Python files in it are fit.py, train.py",
        "echelon run folder/train.py",
    ),
    ("empty", "empty is a folder without __main__.py", "echelon run empty/train.py"),
    ("program", "program is a compiled program (ELF), not a Python file", PROGRAM + "program"),
    ("null.py", "null.py is not a Python file: it has a null byte in line 2", PROGRAM + "null.py"),
    ("wide.py", "wide.py is UTF-16 text; Python reads UTF-8", "iconv -f UTF-16 -t UTF-8 wide.py > utf8.py"),
    (
        "/dev/null",
        "/dev/null is not a regular file; every rank reads the script, so it must be one",
        "cat /dev/null > train.py, then: echelon run train.py",
    ),
    (
        "-",
        "a script on standard input (-) can be read once, not by every rank",
        "cat > train.py, then: echelon run train.py",
    ),
    ("/proc/self/mem", "echelon cannot read /proc/self/mem: Input/output error", "ls -l /proc/self/mem"),
    (
        "broken.py",
        "Python {version} finds a syntax error in broken.py, line 2, column 6: '(' was never closed\n"
        "    print(x\n         ^",
        "{python} -m py_compile broken.py",
    ),
    (
        "-m broken",
        "Python {version} finds a syntax error in {folder}/broken.py, line 2, column 6: '(' was never closed\n"
        "    print(x\n         ^",
        "{python} -m py_compile {folder}/broken.py",
    ),
    (
        "-m package",
        "package is a package without __main__, so `-m package` has nothing to run; its modules are package.fit",
        "echelon run -m package.fit",
    ),
    (
        "-m package.fitt",
        "there is no module package.fitt in the package package; the nearest names there are package.fit",
        "echelon run -m package.fit",
    ),
    (
        "-m nothere",
        "there is no module nothere in {folder} or on Python's search path",
        "run it from the folder that has it: cd FOLDER",
    ),
    (
        "-m train.py",
        "-m takes a module's dotted name, not a path: train.py",
        "echelon run -m train   or: echelon run train.py",
    ),
    ("-m sys", "the module sys is built into Python and cannot be run", "echelon run train.py"),
    ("-- nosuchprogram", "there is no program 'nosuchprogram' on PATH", "echelon run -- /path/to/program …"),
    ("-- ./train.sh", "./train.sh is not executable (its mode is -rw-r--r--)", "chmod +x ./train.sh"),
    ("-- ./folder", "./folder is a folder, not a program", "echelon run -- /path/to/program …"),
    ("--dry-run nothere.py", "there is no script nothere.py in {folder}", "ls {folder}"),
]

PLACES = [
    (
        "--nnodes 4 train.py",
        "you asked for 4 nodes, but this is a single machine outside any Slurm allocation",
        "salloc --nodes=4 …, then the same command; or start it on each node yourself: "
        "echelon run --nnodes=4 --node-rank=K --master-addr=HOST --master-port=PORT …",
    ),
    (
        "--launch tasks train.py",
        "--launch tasks needs a Slurm allocation, but this is not a Slurm job",
        "choose --launch warm or --launch exec",
    ),
    (
        "--nnodes 2 --rdzv-endpoint 127.0.0.1:29400 --launch tasks train.py",
        "--launch tasks needs a Slurm allocation, but this is not a Slurm job",
        "choose --launch warm or --launch exec",
    ),
    ("--nnodes 2 --node-rank x train.py", "--node-rank x: give a whole number of at least 0", "--node-rank 1"),
    (
        "--nnodes 2 --node-rank 5 --master-addr 127.0.0.1 train.py",
        "--node-rank 5: the last of 2 nodes has number 1",
        "--node-rank 1",
    ),
    ("--nnodes 2 --rdzv-endpoint 127.0.0.1:abc train.py", "--rdzv-endpoint 127.0.0.1:abc: " + PORT,
     "--rdzv-endpoint 127.0.0.1:29400"),
    ("--nnodes 2 --rdzv-endpoint 127.0.0.1:99999 train.py", "--rdzv-endpoint 127.0.0.1:99999: " + PORT,
     "--rdzv-endpoint 127.0.0.1:29400"),
    ("--nnodes 2 --rdzv-endpoint 127.0.0.1:0 train.py", "--rdzv-endpoint 127.0.0.1:0: " + PORT,
     "--rdzv-endpoint 127.0.0.1:29400"),
    ("--nnodes 2 --node-rank 0 --master-port abc train.py", "--master-port abc: " + PORT, "--master-port 29500"),
    ("--nnodes 2 --node-rank 0 --master-port 70000 train.py", "--master-port 70000: " + PORT, "--master-port 29500"),
    ("--run-dir train.py train.py", "echelon cannot use the run directory {folder}/train.py: Not a directory",
     "choose another directory: echelon run --run-dir DIRECTORY …"),
    ("--run-dir train.py/x train.py", "echelon cannot use the run directory {folder}/train.py/x: Not a directory",
     "choose another directory: echelon run --run-dir DIRECTORY …"),
    ("--run-dir /dev/null/x train.py", "echelon cannot use the run directory /dev/null/x: Not a directory",
     "choose another directory: echelon run --run-dir DIRECTORY …"),
    ("--run-dir /proc/x train.py", "echelon cannot write the run directory /proc/x: No such file or directory",
     "choose another directory: echelon run --run-dir DIRECTORY …"),
]  # fmt: skip

DEVICES = [
    (
        "-n 3 train.py",
        "you asked for 3 ranks per node, but this machine has 2 devices",
        "echelon run -n 2 …   or, to let ranks share devices: --share-devices",
    ),
    (
        "-n 3 --visible own --share-devices train.py",
        "3 ranks cannot each have their own device: this machine has 2 devices",
        "echelon run -n 2 --visible own …   or let each rank see all: --visible all",
    ),
]

WITHOUT_OVERRIDE = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


def _words(line: str) -> list[str]:
    return shlex.split(line)


@pytest.fixture
def folder(shell: Shell) -> Shell:
    """Fill the folder with scripts that cannot run, and one that can."""
    shell.script("print('started')\n").chmod(0o644)
    shell.script("echo started\n", "train.sh").chmod(0o644)
    shell.script("x = 1\nprint(x\ny = 2\n", "broken.py")
    shell.script("", "folder/train.py")
    shell.script("", "folder/fit.py")
    shell.script("", "package/__init__.py")
    shell.script("", "package/fit.py")
    (shell.folder / "empty").mkdir()
    (shell.folder / "linked.py").symlink_to("gone.py")
    (shell.folder / "program").write_bytes(b"\x7fELF\x02\x01\x01\0")
    (shell.folder / "null.py").write_bytes(b"x = 1\ny = '\0'\n")
    (shell.folder / "wide.py").write_bytes("x = 1\n".encode("utf-16"))
    return shell


def _refuse(shell: Shell, words: Sequence[str], message: str, hint: str, **environ: str) -> None:
    """Assert that a command line is refused with exactly these words and leaves nothing behind."""
    facts = {"folder": shell.folder, "python": sys.executable, "version": platform.python_version()}
    before = sorted(shell.folder.rglob("*"))
    # less than a start waits for nodes, and enough for the process of all forks to import torch on a busy machine
    done = shell.fork(*words, seconds=50.0, **environ)
    assert done.said == f"echelon: error: {message.format(**facts)}\n  hint: {hint.format(**facts)}\n"
    assert done.exit_code == 2
    assert done.stdout == b""
    assert sorted(shell.folder.rglob("*")) == before
    assert shell.processes() == []


@pytest.mark.parametrize(("line", "message", "hint"), OPTIONS, ids=[row[0] for row in OPTIONS])
def test_wrong_option_is_refused(folder: Shell, line: str, message: str, hint: str) -> None:
    """The error for a wrong option gives its value, valid values, and a repair to paste."""
    _refuse(folder, _words(line), message, hint)


@pytest.mark.parametrize(("line", "message", "hint"), SCRIPTS, ids=[row[0] or "nothing" for row in SCRIPTS])
def test_script_that_cannot_run_is_refused(folder: Shell, line: str, message: str, hint: str) -> None:
    """What Python could not run is refused before any process is started, and the message says why."""
    _refuse(folder, _words(line), message, hint)


@pytest.mark.parametrize(("line", "message", "hint"), PLACES, ids=[row[0] for row in PLACES])
def test_place_that_is_not_there_is_refused(folder: Shell, line: str, message: str, hint: str) -> None:
    """Nodes, meeting points and run directories that cannot be had are refused at once, not waited for."""
    _refuse(folder, _words(line), message, hint)


@pytest.mark.parametrize(("line", "message", "hint"), DEVICES, ids=[row[0] for row in DEVICES])
def test_more_ranks_than_devices_are_refused(folder: Shell, line: str, message: str, hint: str) -> None:
    """Ranks that would share a device do so only when the user says that this is meant."""
    _refuse(folder, _words(line), message, hint, CUDA_VISIBLE_DEVICES="0,1")


def test_more_ranks_than_devices_run_when_sharing_is_meant(folder: Shell) -> None:
    """--share-devices is the repair that the error offers, and it works."""
    done = folder.run("-n", "3", "--share-devices", "--show", "all", "train.py", CUDA_VISIBLE_DEVICES="0,1")
    assert done.exit_code == 0
    assert sorted(done.stdout.splitlines()) == [b"[0] started", b"[1] started", b"[2] started"]


def test_run_directory_of_a_finished_run_is_refused(folder: Shell) -> None:
    """The logs of a run that is over are never written over."""
    assert folder.run("--run-dir", "mine", "train.py").exit_code == 0
    message = "the run directory {folder}/mine already holds a run that has ended"
    _refuse(folder, ["--run-dir", "mine", "train.py"], message,
            "choose another directory: echelon run --run-dir {folder}/mine-2 …")  # fmt: skip


@pytest.mark.parametrize("name", ["mine/", "mine/.", "../{name}/mine"])
def test_run_directory_by_another_name_is_refused(folder: Shell, name: str) -> None:
    """The repair names a new directory beside the old one, however the old one was written."""
    assert folder.run("--run-dir", "mine", "train.py").exit_code == 0
    message = "the run directory {folder}/mine already holds a run that has ended"
    name = name.format(name=folder.folder.name)
    _refuse(folder, ["--run-dir", name, "train.py"], message,
            "choose another directory: echelon run --run-dir {folder}/mine-2 …")  # fmt: skip


def test_run_directory_on_a_full_disk_is_refused(shell: Shell) -> None:
    """What cannot be written before the start is one error, not a traceback."""
    shell.script("open('begun', 'w')\n")
    line = [sys.executable, "-m", "echelon", "run", "-n", "1", "train.py"]
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 64; exec "$@"', "bash", *line],  # node.pyz has more KiB than that
        cwd=shell.folder, env=shell.environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert re.match(
        r"echelon: error: echelon cannot write the run directory \S+: File too large\n  hint: ", done.stderr
    )
    assert shell.files("begun") == []


def test_run_directory_of_a_running_run_is_refused(shell: Shell) -> None:
    """Two runs never share a directory; the first one is not disturbed."""
    shell.script("import sys, time\nprint('up', flush=True)\ntime.sleep(60)\n")
    with shell.start("--run-dir", "mine", "train.py") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"up\n"
        second = shell.run("--run-dir", "mine", "train.py")
        assert second.said == (
            f"echelon: error: the run directory {shell.folder}/mine belongs to a run that is still running\n"
            f"  hint: choose another directory: echelon run --run-dir {shell.folder}/mine-2 …\n"
        )
        assert second.exit_code == 2
        assert first.poll() is None
        first.send_signal(signal.SIGTERM)
        assert first.wait(10) == 128 + signal.SIGTERM


needs_setpriv = pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="nothing is forbidden to root"
)


def _refuse_as_if_not_root(shell: Shell, words: Sequence[str], expected: str) -> None:
    before = WITHOUT_OVERRIDE if os.geteuid() == 0 else ()
    done = subprocess.run(
        [*before, sys.executable, "-m", "echelon", "run", *words],
        cwd=shell.folder,
        env=shell.environ,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.stderr.decode() == expected
    assert (done.returncode, done.stdout) == (2, b"")


@needs_setpriv
def test_script_without_permission_is_refused(shell: Shell) -> None:
    """The message shows the mode, the hint repairs it."""
    path = shell.script("")
    path.chmod(0o200)
    _refuse_as_if_not_root(
        shell,
        ["train.py"],
        f"echelon: error: train.py may not be read by user {os.geteuid()} (its mode is --w-------)\n"
        f"  hint: chmod u+r {path}\n",
    )
    assert shell.files("*") == [path]


@needs_setpriv
@pytest.mark.parametrize("arguments", [[], ["--run-dir", "closed/new"]], ids=["default", "run-dir"])
def test_folder_without_permission_is_refused(shell: Shell, arguments: list[str]) -> None:
    """A run directory that cannot be made is named, where the user chose it and where we did."""
    closed = shell.folder / "closed"
    script = shell.script("", "closed/train.py")
    closed.chmod(0o500)
    shell.folder = shell.folder if arguments else closed
    try:
        name = "closed/train.py" if arguments else "train.py"
        before = WITHOUT_OVERRIDE if os.geteuid() == 0 else ()
        done = subprocess.run(
            [*before, sys.executable, "-m", "echelon", "run", *arguments, name],
            cwd=shell.folder, env=shell.environ, capture_output=True, check=False, timeout=60,
        )  # fmt: skip
    finally:
        closed.chmod(0o700)
    assert list(closed.iterdir()) == [script]
    where = f"{closed}/new" if arguments else f"{closed}/echelon-runs/"
    assert done.stderr.decode().startswith(f"echelon: error: echelon cannot write the run directory {where}")
    assert done.stderr.decode().endswith(
        ": Permission denied\n  hint: choose another directory: echelon run --run-dir DIRECTORY …\n"
    )
    assert (done.returncode, done.stdout) == (2, b"")


def test_unknown_command_offers_the_nearest(shell: Shell) -> None:
    """`echelon rum` and `echelon train.py` each say what was probably meant."""
    for word, hint in (("rum", "did you mean run?"), ("train.py", "echelon run train.py")):
        done = subprocess.run(
            [sys.executable, "-m", "echelon", word],
            cwd=shell.folder,
            env=shell.environ,
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert done.stderr.decode() == f"echelon: error: echelon has no command {word!r}\n  hint: {hint}\n"
        assert (done.returncode, done.stdout) == (2, b"")


def test_waiting_for_nodes_that_never_come_can_be_interrupted(shell: Shell) -> None:
    """Ctrl-C ends a node that was started by hand and still waits for the first one."""
    shell.script("")
    with shell.start("--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "127.0.0.1:1", "train.py") as node:
        wait_until(lambda: len([line for line in shell.processes() if "node.pyz" in line]) >= 2)  # itself and its guard
        node.send_signal(signal.SIGINT)
        assert node.wait(5) in (128 + signal.SIGINT, -signal.SIGINT)
