"""`--stage-data` and `--stage-env`: a run uses the copies on its node's own disk, and removes them at its end."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from .shell import Done, Shell, wait_until

READS = """
import io, os, pathlib, sys
for place in sys.argv[1:] + ["{data}"]:
    print(open(os.path.join(place, "inner", "a.txt")).read(), sorted(os.listdir(place)), os.path.isdir(place))
print(pathlib.Path("{data}/inner/a.txt").read_text(), sorted(p.name for p in pathlib.Path("{data}").rglob("*.txt")))
print(io.open(file="{data}/inner/a.txt").read(), os.environ["ECHELON_DATA_DATA"], os.environ.get("DATA"))
for change in (lambda: open(sys.argv[1] + "/new", "w"), lambda: os.mkdir(sys.argv[1] + "/new")):
    try:
        print(change())
    except OSError as error:
        print(type(error).__name__)
os.makedirs("{data}/made/inside")
pathlib.Path("{data}/made/new").write_text("by the script")
os.unlink("{data}/inner/b.txt")
print(os.path.exists("{data}/inner/b.txt"), os.path.isdir("{data}/made/inside"), open("{data}/made/new").read())
"""


def err(done: Done) -> str:
    return done.stderr.decode()


def out(done: Done) -> str:
    return done.stdout.decode()


@pytest.fixture
def staging(shell: Shell) -> Iterator[Shell]:
    """A shell whose nodes' own disk is a folder, with data on what stands for a shared disk."""
    (shell.folder / "shared" / "data" / "inner").mkdir(parents=True)
    (shell.folder / "shared" / "data" / "inner" / "a.txt").write_text("alpha")
    (shell.folder / "shared" / "data" / "inner" / "b.txt").write_text("beta")
    shell.environ["ECHELON_STAGE"] = str(shell.folder / "own")
    shell.environ["ECHELON_POOL"] = str(shell.folder / "pools")
    (shell.folder / "own").mkdir()
    yield shell
    subprocess.run(
        [sys.executable, "-m", "echelon", "pool", "stop"], env=shell.environ, capture_output=True, check=False
    )
    wait_until(lambda: not any((shell.folder / "own").iterdir()))


@pytest.mark.parametrize("launch", ["warm", "exec"])
def test_script_uses_the_copy(staging: Shell, launch: str) -> None:
    """By its arguments, by variables, and where it names the old path itself; what it changes is no copy."""
    data = staging.folder / "shared" / "data"
    staging.script(READS.format(data=data))
    staging.environ["DATA"] = f"{data}/inner"
    words = ("--launch", launch, "--stage-data", "shared/data", "train.py", "shared/data", f"{data}/")
    done = staging.run(*words)
    assert done.exit_code == 0, done.said
    copy = next(line.rpartition(": ")[2] for line in err(done).splitlines() if "data staged on this machine" in line)
    assert copy.startswith(str(staging.folder / "own"))
    *reads, read, variables, written, made, changed = out(done).splitlines()
    assert reads == ["alpha ['inner'] True"] * 3
    assert (read, variables) == ("alpha ['a.txt', 'b.txt']", f"alpha {copy} {copy}/inner")
    assert (written, made, changed) == ("PermissionError", "PermissionError", "False True by the script")
    assert (data / "made" / "new").read_text() == "by the script"
    assert not any((staging.folder / "own").iterdir())


KILLS = """
import os, pathlib, signal, sys, time
if sys.argv[1] == "kill":
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_bytes().split(b"\\0")
        if b"stage" in words and any(word.startswith(os.getcwd().encode()) for word in words):
            os.kill(int(path.parent.name), signal.SIGKILL)
    pathlib.Path("killed").touch()
    while not os.path.exists("go"):
        time.sleep(0.01)
print(open(os.environ["ECHELON_DATA_DATA"] + "/inner/a.txt").read())
"""


def test_copy_outlives_the_process_that_brought_it(staging: Shell) -> None:
    """If that process is killed alone, another run leaves the copy to the ranks, and their agent removes it."""
    staging.script(KILLS)
    shutil.copytree(staging.folder / "shared" / "data", staging.folder / "other" / "data")
    with staging.start("--stage-data", "shared/data", "train.py", "kill") as first:
        wait_until((staging.folder / "killed").exists)
        second = staging.run("--stage-data", "other/data", "train.py", "-")
        (staging.folder / "go").touch()
        said = first.communicate(timeout=60)
    assert (out(second), said[0], first.returncode) == ("alpha\n", b"alpha\n", 0), said
    assert not any((staging.folder / "own").iterdir())
    assert not list(staging.folder.glob(".echelon-*"))


STARTS = """
import multiprocessing, os
def read():
    with open("{data}/inner/a.txt") as file:
        print(os.readlink("/proc/self/fd/%d" % file.fileno()), os.environ.get("PYTHONPATH"), flush=True)
if __name__ == "__main__":
    for how in ("spawn", "forkserver"):
        process = multiprocessing.get_context(how).Process(target=read)
        process.start()
        process.join()
"""


def test_processes_that_the_script_starts_read_the_copy(staging: Shell) -> None:
    """Those that multiprocessing starts anew know nothing of their rank but what its environment says."""
    staging.script(STARTS.format(data=staging.folder / "shared" / "data"))
    done = staging.run("--stage-data", "shared/data", "train.py")
    lines = out(done).splitlines()
    assert (done.exit_code, len(lines)) == (0, 2), done.said
    path = staging.environ["PYTHONPATH"]
    assert all(line.startswith(f"{staging.folder}/own/") and line.endswith(f" {path}") for line in lines), done.said


def test_pool_keeps_the_copy(staging: Shell) -> None:
    """The second run of a pool stages nothing, a third one what changed; the copy goes with the pool."""
    staging.script("import os; print(open(os.environ['ECHELON_DATA_DATA'] + '/inner/a.txt').read())")
    pool = [sys.executable, "-m", "echelon", "pool"]
    subprocess.run([*pool, "start"], env=staging.environ, check=True, cwd=staging.folder)
    first, second = (staging.run("--stage-data", "shared/data", "train.py") for _ in range(2))
    assert "data staged on this machine: 2 files, " in err(first)
    assert "data is staged already: " in err(second)
    (staging.folder / "shared" / "data" / "inner" / "a.txt").write_text("beta")
    third = staging.run("--stage-data", "shared/data", "train.py")
    assert "data staged on this machine: what changed, " in err(third)
    assert [out(done) for done in (first, second, third)] == ["alpha\n", "alpha\n", "beta\n"]
    assert any((staging.folder / "own").iterdir())


def test_two_of_one_name(staging: Shell) -> None:
    """Each argument gets its own; the variable that both would have is not set, and a note says so."""
    shutil.copytree(staging.folder / "shared" / "data", staging.folder / "other" / "data")
    (staging.folder / "other" / "data" / "inner" / "a.txt").write_text("beta")
    staging.script(
        "import os, sys\nread = [open(path + '/inner/a.txt').read() for path in sys.argv[1:]]\n"
        "print(read, 'ECHELON_DATA_DATA' in os.environ)\n"
    )
    done = staging.run(
        *("--stage-data", "shared/data", "--stage-data", "other/data"), "train.py", "shared/data", "other/data"
    )
    assert out(done) == "['alpha', 'beta'] False\n"
    assert err(done).count("note: ECHELON_DATA_DATA is not set: 2 of --stage-data would have this name") == 1


TRAINS = """
import os, sys, torch
from torch.utils.data import DataLoader, TensorDataset
names = [os.path.join(sys.argv[1], "inner", name) for name in ("a.txt", "b.txt")]
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (x,) in enumerate(DataLoader(TensorDataset(torch.ones(40, 1)), batch_size=4)):
    names.reverse()
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
    print(step, names[0], open(names[0]).read(), flush=True)
    if step == 5 and not os.path.exists("killed"):
        raise SystemExit(3)
"""


def test_saved_training_goes_on_beside_another_copy(staging: Shell) -> None:
    """Its variables keep the old paths, which lead to the copy wherever it is; its arguments are the same."""
    staging.script(TRAINS)
    data = staging.folder / "shared" / "data"
    words = ("--stage-data", "shared/data", "--checkpoint-every", "2steps", "--max-restarts", "0")
    first = staging.run("-n", "2", *words, "--run-dir", "one", "train.py", str(data))
    assert first.exit_code == 3, first.said
    (staging.folder / "killed").touch()
    staging.environ["ECHELON_STAGE"] = str(staging.folder / "other")
    second = staging.run("-n", "2", *words, "--resume", "one", "train.py", str(data))
    assert second.exit_code == 0, second.said
    lines = dict(line.split(" ", 1) for line in (out(first) + out(second)).splitlines())
    read = [f"{data}/inner/{'b.txt beta' if step % 2 == 0 else 'a.txt alpha'}" for step in range(10)]
    assert lines == {str(step): line for step, line in enumerate(read)}
    assert "arguments" not in err(second)
    (staging.folder / "data.squashfs").touch()
    refused = staging.run(
        "--stage-data", "data.squashfs", "--checkpoint-every", "2steps", "train.py", "./data.squashfs"
    )
    assert (refused.exit_code, "hint: --stage-data data.squashfs=/tmp/data" in err(refused)) == (2, True), refused.said


def test_target(staging: Shell) -> None:
    """`=DST` is a path of the user's own; what is there already is not replaced."""
    there = staging.folder / "there"
    staging.script("import sys; print(sys.argv[1], open(sys.argv[1] + '/inner/a.txt').read())")
    done = staging.run("--stage-data", f"shared/data={there}", "train.py", "shared/data")
    assert (out(done), there.is_symlink()) == (f"{there} alpha\n", False)
    there.mkdir()
    refused = staging.run("--stage-data", f"shared/data={there}", "train.py", "shared/data")
    assert (refused.exit_code, f"{there} is there already" in err(refused), there.is_dir()) == (1, True, True)


@pytest.mark.parametrize(("words", "said"), [
    (("--stage-data", "nothing"), "there is no nothing"),
    (("--stage-data", "/dev/null"), "there is no file or folder /dev/null"),
    (("--stage-data", "shared/data=here"), "give an absolute path after ="),
    (("--stage-data", "shard:train.py"), "shard: is for a folder of files"),
    (("--stage-data", "shared/data", "--stage-data", "shared/data/"), "--stage-data shared/data/ is given twice"),
    (("--stage-data", "."), "holds the folder in which the run writes"),
    (("--stage-data", "shared/data", "--launch", "tasks"), "--launch tasks"),
])  # fmt: skip
def test_what_cannot_be_staged(staging: Shell, words: tuple[str, ...], said: str) -> None:
    """The error names it, and nothing is started."""
    staging.script("print('here')")
    done = staging.run(*words, "train.py")
    assert (done.exit_code, out(done)) == (2, ""), done.said
    assert said in err(done)
    assert "hint: " in err(done)


def test_environment_moves(staging: Shell) -> None:
    """A virtual environment works from its copy: an extension in C, programs, .pth files and editable installs."""
    old = staging.folder / "shared" / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", old], check=True)
    site = old / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    import numpy

    numpy_folder = Path(numpy.__file__).parent
    for folder in (numpy_folder, numpy_folder.with_name("numpy.libs")):
        if folder.exists():
            shutil.copytree(folder, site / folder.name, ignore=shutil.ignore_patterns("tests"))
    (old / "inside").mkdir()
    (old / "inside" / "of_pth.py").write_text("")
    (old / "inside" / "editable.py").write_text("")
    (site / "own.pth").write_text(f"{old}/inside\n")
    (site / "__editable___x_finder.py").write_text(f"MAPPING = {{'editable': '{old}/inside/editable.py'}}\n")
    (site / "echelon.pth").write_text(f"{Path(__file__).parents[2] / 'src'}\n")
    program = old / "bin" / "tool"
    program.write_text(f"#!{old}/bin/python\nimport sys; print(sys.prefix)\n")
    program.chmod(0o755)
    staging.script(
        "import __editable___x_finder, numpy, of_pth, os, subprocess, sys\n"
        "print(sys.prefix, numpy.__file__, of_pth.__file__, __editable___x_finder.MAPPING['editable'])\n"
        "print(numpy.linalg.inv(numpy.eye(2)).sum(), subprocess.check_output(['tool'], text=True).strip())\n"
        "print(os.environ['VIRTUAL_ENV'])\n"
    )
    environ = {**staging.environ, "VIRTUAL_ENV": str(old), "PATH": f"{old}/bin:{staging.environ['PATH']}"}
    done = subprocess.run(
        [old / "bin" / "python", "-m", "echelon", "run", "-n", "1", "--stage-env", "train.py"],
        cwd=staging.folder, env=environ, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert str(old) not in done.stdout
    assert done.stdout.count(str(staging.folder / "own")) == 6


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this machine cannot mount without an administrator")
def test_image(staging: Shell) -> None:
    """`echelon pack` makes an image of a folder; staged, it is mounted, and the script sees the folder."""
    words = [sys.executable, "-m", "echelon", "pack"]
    data = staging.folder / "shared" / "data"
    packed = subprocess.run(
        [*words, data], env=staging.environ, cwd=staging.folder, capture_output=True, text=True, check=False
    )
    assert (packed.returncode, packed.stderr.splitlines()[-1].rpartition("; ")[2]) == (
        0, "echelon run --stage-data data.squashfs …",
    )  # fmt: skip
    again = subprocess.run(
        [*words, data], env=staging.environ, cwd=staging.folder, capture_output=True, text=True, check=False
    )
    assert (again.returncode, "data.squashfs is there already" in again.stderr) == (2, True)
    staging.script("import sys; print(open(sys.argv[1] + '/inner/a.txt').read())")
    done = staging.run("--stage-data", "data.squashfs", "train.py", "./data.squashfs")
    assert out(done) == "alpha\n", done.said
    broken = staging.folder / "broken.squashfs"
    broken.write_text("no image")
    refused = staging.run("--stage-data", "broken.squashfs", "train.py", "./broken.squashfs")
    assert (refused.exit_code, "squashfuse ended: " in err(refused)) == (1, True), refused.said
