"""The stand-in for Singularity hides the host and passes on what the real one passes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import Cluster
from tests.cluster.processes import environ, pids

from .fixture import Singularity, singularity
from .image import Image

__all__ = ["singularity"]

SLURM = "srun sbatch scontrol sinfo squeue scancel sacct munge slurmd slurmctld munged"


@pytest.fixture
def image(singularity: Singularity, tmp_path: Path) -> Path:
    """Offer an image with the system's Python."""
    return singularity.image(tmp_path / "image.sif")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


def ran(*words: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run `singularity` with these words."""
    argv = ["singularity", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, **options)


def said(*words: object, **options: Any) -> str:
    """Run `singularity`, which must not fail, and return its output without the last line's end."""
    done = ran(*words, **options)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.rstrip("\n")


def is_mine(pid: int, mark: str) -> bool:
    """Tell whether a process was started with a mark in its environment."""
    return environ(pid).get("CONTAINER_TEST") == mark


def left(mark: str) -> list[int]:
    """Return what still runs of a container some moments after its end."""
    deadline = time.monotonic() + 5
    while (found := [pid for pid in pids() if is_mine(pid, mark)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def test_inside_is_neither_slurm_nor_munge(image: Path) -> None:
    """No program and no library of Slurm or munge can be found inside; the shell can."""
    script = (
        f"for name in sh {SLURM}; do command -v $name; done; ls -d /etc/slurm /usr/lib/*/*slurm* /usr/lib/*/*munge*"
    )
    done = ran("exec", image, "sh", "-c", script)
    assert done.stdout.split() == ["/usr/bin/sh"]
    assert "/etc/slurm" in done.stderr


def test_inside_is_no_echelon(image: Path, singularity: Singularity, tmp_path: Path) -> None:
    """Neither the system's Python nor the one that runs the tests, with its packages, can import echelon."""
    program = "import importlib.util as u; print(u.find_spec('echelon'), u.find_spec('pytest') is not None)"
    packages = str(Path(pytest.__file__).parents[1])
    own = singularity.image(tmp_path / "own.sif", Image(python=sys.executable, site=packages))
    source = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    assert said("exec", own, "python3", "-c", program, env=source) == "None True"
    assert said("exec", image, "python3", "-c", program, env=source).startswith("None")
    assert ran("exec", image, "echelon").returncode == 255
    assert ran("exec", image, "ls", sys.prefix).stdout == ""


def test_host_keeps_what_the_container_lacks(image: Path) -> None:
    """What is hidden inside is there outside, while the container runs and after it."""
    running = subprocess.Popen(["singularity", "exec", image, "sh", "-c", "echo up; read line"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)  # fmt: skip
    running.stdout.readline()
    assert os.path.exists("/usr/bin/env")
    assert os.access(sys.executable, os.X_OK)
    running.communicate(b"\n", timeout=60)
    assert list(Path("/tmp").glob("container-*")) == []


def test_home_and_folder_are_mounted_and_the_rest_is_not(image: Path, tmp_path: Path) -> None:
    """The working directory and the home are the host's and can be written; the image cannot."""
    home = tmp_path / "home"
    home.mkdir()
    script = "exec 2>&-; pwd; echo $HOME; echo one >here; echo two >$HOME/there; touch /usr/no; touch /no; ls /"
    lines = said("exec", image, "sh", "-c", f"{script} || true", env={**os.environ, "HOME": str(home)}).split("\n")
    assert lines[:2] == [str(tmp_path), str(home)]
    assert {"usr", "proc", "dev", "tmp"} <= set(lines[2:])
    assert "work" not in lines and "no" not in lines
    assert (Path("here").read_text(), (home / "there").read_text()) == ("one\n", "two\n")


def test_home_is_left_out_on_request(image: Path, tmp_path: Path) -> None:
    """--no-home leaves the home out; --writable-tmpfs lets the image be written, and forgets it."""
    outside = Path("/var/lib/container-test-home")
    outside.mkdir(exist_ok=True)
    try:
        home = {**os.environ, "HOME": str(outside)}
        assert said("exec", image, "sh", "-c", "test -d $HOME && echo yes", env=home) == "yes"
        assert ran("exec", "--no-home", image, "sh", "-c", "test -d $HOME", env=home).returncode == 1
    finally:
        outside.rmdir()
    assert said("exec", "--writable-tmpfs", image, "sh", "-c", "touch /usr/new /new && echo yes") == "yes"
    assert not Path("/usr/new").exists()


def test_binds_are_where_they_were_asked_for(image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Binds come from -B, --bind and SINGULARITY_BIND, several at once, with a target and read-only."""
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    monkeypatch.setenv("SINGULARITY_BIND", f"{tmp_path}/a:/opt/cray")
    binds = f"{tmp_path}/b:/usr/lib64/b:ro,{tmp_path}/c/file:/usr/lib64/libcxi.so.1"
    script = "cat /opt/cray/file /usr/lib64/b/file /usr/lib64/libcxi.so.1; touch /opt/cray/new; touch /usr/lib64/b/new"
    done = ran("exec", "-B", binds, f"--bind={tmp_path}/a:/one", image, "sh", "-c", script)
    assert done.stdout == "abc"
    assert "Read-only" in done.stderr
    assert (tmp_path / "a" / "new").exists()


def test_bind_of_a_missing_folder_is_refused_unless_the_image_has_one(
    image: Path, singularity: Singularity, tmp_path: Path
) -> None:
    """A missing source ends with 255 and the real text; an image may say where such folders are."""
    done = ran("exec", "-B", "/opt/cray-is-missing", image, "true")
    assert done.returncode == 255
    assert "FATAL:   container creation failed" in done.stderr
    assert "mount source /opt/cray-is-missing doesn't exist" in done.stderr
    (tmp_path / "host/opt/cray-is-missing/lib").mkdir(parents=True)
    other = singularity.image(tmp_path / "other.sif", Image(sources=str(tmp_path / "host")))
    assert said("exec", "-B", "/opt/cray-is-missing", other, "ls", "/opt/cray-is-missing") == "lib"


def test_environment_passes_but_paths_are_the_images_own(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's variables pass, SINGULARITYENV_X becomes X, and --env wins over both."""
    for name, value in {
        "A": "host",
        "B": "host",
        "SINGULARITYENV_B": "singularity",
        "C": "host",
        "APPTAINERENV_C": "apptainer",
        "LD_LIBRARY_PATH": "/host",
    }.items():
        monkeypatch.setenv(name, value)
    Path("file.env").write_text("# a comment\nD=from file\nE='quoted'\n")
    script = 'echo "$A|$B|$C|$D|$E|$F|$G|$PATH|$LD_LIBRARY_PATH|$SINGULARITYENV_B|$SINGULARITY_NAME"'
    asked = ("--env", "C=option,F=1", "--env=G=2", "--env-file", "file.env")
    path = "/opt/image/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    shown = said("exec", *asked, image, "sh", "-c", script)
    assert shown == f"host|singularity|option|from file|quoted|1|2|{path}|/.singularity.d/libs||image.sif"


def test_environment_passes_unread(image: Path) -> None:
    """Variables with odd names and values pass as they are, and a start-up file of the shell is not run."""
    Path("start").write_text("echo sourced\n")
    odd = {"a.b": "1", "LINES2": "x\ny", "BASH_FUNC_f%%": "() {  echo hi\n}", "BASH_ENV": str(Path("start").resolve())}
    given = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **odd}
    shown = said("exec", image, "env", "-0", env=given).rstrip("\0").split("\0")
    found = dict(line.split("=", 1) for line in shown)
    assert {name: found.get(name) for name in odd} == odd
    own = {"PATH", "LD_LIBRARY_PATH", "PWD", "SHLVL", "_"}
    assert {name for name in found if "SINGULARITY" not in name and "APPTAINER" not in name} <= {*given, *own}


def test_clean_environment_keeps_only_what_was_asked_for(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--cleanenv drops the host's variables but not SINGULARITYENV_X."""
    monkeypatch.setenv("A", "host")
    monkeypatch.setenv("SINGULARITYENV_B", "kept")
    monkeypatch.setenv("SINGULARITYENV_PREPEND_PATH", "/first")
    shown = said("exec", "--cleanenv", image, "sh", "-c", 'echo "$A|$B|${PATH%%:*}|$HOME"')
    assert shown == f"|kept|/first|{os.environ['HOME']}"


def test_run_starts_with_the_runscript_and_exec_does_not(singularity: Singularity, tmp_path: Path) -> None:
    """`run` puts the image's runscript before the command; both see the image's environment."""
    image = singularity.image(tmp_path / "i.sif", Image(runscript="/usr/bin/env IN=yes", environ={"WITH": "x=1 2"}))
    script = ("sh", "-c", 'echo "$IN|$WITH"')
    assert said("run", image, *script) == "yes|x=1 2"
    assert said("exec", image, *script) == "|x=1 2"
    assert said("--quiet", "run", "--pwd", "/usr", image, "pwd") == "/usr"


def test_gpu_options_are_accepted(image: Path) -> None:
    """--rocm and --nv run the command, and say when the host has no such driver."""
    for option, device in (("--rocm", "/dev/kfd"), ("--nv", "/dev/nvidiactl")):
        done = ran("exec", option, image, "echo", "in")
        assert (done.stdout, done.returncode) == ("in\n", 0)
        assert ("Could not find any" in done.stderr) is not os.path.exists(device)


def test_standard_streams_and_exit_code_pass(image: Path) -> None:
    """Input, output and errors are the command's, and so is the exit code; a signal's is 128 and its number."""
    done = ran("exec", image, "sh", "-c", "cat; echo talk >&2; exit 41", input="line\n")
    assert (done.stdout, done.stderr, done.returncode) == ("line\n", "talk\n", 41)
    assert ran("exec", image, "sh", "-c", "kill -9 $$").returncode == 137


def test_inherited_descriptors_pass_and_no_others(image: Path) -> None:
    """A pipe that the caller passes on can be used inside under the same number; nothing else is open."""
    reader, writer = os.pipe()
    script = f"echo through >&{writer}; ls /proc/self/fd"
    listed = said("exec", image, "bash", "-c", script, pass_fds=(writer,)).split()
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "through\n"
    # One more is ls's own.
    assert len(listed) == 5 and {"0", "1", "2", str(writer)} <= set(listed)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_signal_to_the_container_reaches_the_command(image: Path, number: signal.Signals) -> None:
    """The command's own handler runs once, and its exit code is returned."""
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo got {name}; exit 5' {name}; echo up; while :; do sleep 0.05; done"
    process = subprocess.Popen(["singularity", "exec", image, "bash", "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert (output, process.returncode) == (f"got {name}\n", 5)


def test_command_that_dies_of_a_signal_ends_the_container(image: Path) -> None:
    """SIGTERM to a command without a handler ends it, and the exit code says so."""
    process = subprocess.Popen(["singularity", "exec", image, "sh", "-c", "echo up; exec sleep 60"], stdout=-1)
    process.stdout.readline()
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("options", [(), ("--pid",)])
def test_killed_container_leaves_nothing(image: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    """SIGKILL to the outermost process takes the command and all that it started along, other sessions too."""
    mark = str(tmp_path)
    script = "setsid sleep 60 & (sleep 61 & exec setsid sleep 62) & echo up; exec sleep 63"
    words = ["singularity", "exec", *options, str(image), "bash", "-c", script]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, "CONTAINER_TEST": mark})
    assert process.stdout.readline() == b"up\n"
    assert len([pid for pid in pids() if is_mine(pid, mark)]) > 4
    process.kill()
    process.wait()
    assert left(mark) == []


def test_ended_command_leaves_nothing(image: Path, tmp_path: Path) -> None:
    """What a command leaves in the background ends with it."""
    mark = str(tmp_path)
    marked = {**os.environ, "CONTAINER_TEST": mark}
    assert said("exec", image, "bash", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo up", env=marked) == "up"
    assert left(mark) == []


def test_processes_are_the_hosts_unless_asked_otherwise(image: Path) -> None:
    """A command sees its real process id; with --pid it is in a name space of its own."""
    process = subprocess.Popen(["singularity", "exec", image, "sh", "-c", "echo $$; read line"], stdin=-1, stdout=-1)
    inside = int(process.stdout.readline())
    assert f"echo ${'$'}" in Path(f"/proc/{inside}/cmdline").read_text()
    process.communicate(b"\n", timeout=60)
    assert int(said("exec", "--pid", image, "sh", "-c", "echo $$")) < 10


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("exec", "missing.sif", "true"), 255, "FATAL:   could not open image {folder}/missing.sif: failed to"),
        (("exec", "text.sif", "true"), 255, "FATAL:   could not open image {folder}/text.sif: image format not recog"),
        (("exec", "image.sif", "no-such"), 255, 'FATAL:   "no-such": executable file not found in $PATH'),
        (("exec", "image.sif"), 1, "requires at least 2 arg(s), only received 1"),
        (("exec", "--bad", "image.sif", "true"), 1, "unknown flag: --bad"),
        (("frobnicate",), 1, 'unknown command "frobnicate"'),
    ],
)
def test_wrong_request_is_refused_as_by_the_real_one(
    image: Path, tmp_path: Path, words: tuple[str, ...], code: int, text: str
) -> None:
    """A missing image, command or option gives Singularity's text and exit code."""
    Path("text.sif").write_text("just text")
    done = ran(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert text.format(folder=tmp_path) in done.stderr


@pytest.mark.slurm
def test_ranks_of_a_step_run_in_containers(slurm: Cluster, singularity: Singularity, image: Path) -> None:
    """srun starts one container a rank, which knows its rank and finds no srun; cancelled, nothing is left."""
    script = "command -v srun || echo $SLURM_PROCID"
    step = ("srun", "-n4", "singularity", "exec", str(image), "sh", "-c")
    assert sorted(slurm.run(*step, script).stdout.split()) == ["0", "1", "2", "3"]
    running = slurm.popen(*step, "echo up; exec sleep 60", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert [running.stdout.readline() for _ in range(4)] == ["up\n"] * 4
    slurm.run("scancel", "--name=singularity")
    running.communicate(timeout=30)
    slurm.wait(lambda: not slurm.processes(), "nothing is left on the nodes", timeout=30)
