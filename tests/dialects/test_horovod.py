"""Ranks of Horovod meet through MPI: a script whose ranks MPI does not start is refused, and never trained N times."""

import os
from pathlib import Path

import pytest
from tests.run.shell import Shell

STAND_IN = str(Path(__file__).parent / "stand_in")
INIT = "import horovod.torch as hvd\nhvd.init()\n"
BY_HYDRA = "#!/bin/sh\necho 'HYDRA build details:'\n"


def beside(shell: Shell, *folders: str) -> str:
    return os.pathsep.join([shell.environ["PYTHONPATH"], *folders])


def built(shell: Shell, *texts: str) -> str:
    """Make a Horovod whose libraries contain these texts; return the PYTHONPATH that has it."""
    shell.script("", "packages/horovod/__init__.py")
    shell.script("ELF " + " ".join(texts), "packages/horovod/torch/mpi_lib_v2.so")
    return beside(shell, f"{shell.folder}/packages")


def launcher(shell: Shell, name: str) -> str:
    """Make a launcher that says it is of MPICH; return the PATH that has it first."""
    shell.script(BY_HYDRA, f"bin/{name}").chmod(0o755)
    return f"{shell.folder}/bin:{shell.environ['PATH']}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (INIT, 1),
        ("import os\nfrom horovod import torch as hvd\nhvd.init()\n", 2),
        ("import horovod.tensorflow as hvd\nimport tensorflow as tf\nhvd.init()\n", 1),
        ("import torch\ndef main():\n    import horovod.torch as hvd\n    hvd.init()\nmain()\n", 3),
        ("try:\n    import horovod.torch as hvd\n    hvd.init()\nexcept ImportError:\n    hvd = None\n", 2),
        ("import sys\nif '--horovod' in sys.argv:\n    import horovod.torch as hvd\n    hvd.init()\n", 3),
        ("import mine\nmine.hvd.init()\n", 0),
        ("from mine import hvd\n", 0),
    ],
)
def test_ranks_that_would_be_alone(shell: Shell, text: str, line: int) -> None:
    """Wherever the script or a module of its own imports Horovod."""
    shell.script(INIT, "mine.py")
    shell.script("", "packages/tensorflow.py")
    shell.script(text, "t.py")
    done = shell.fork("-n", "2", "t.py", PYTHONPATH=beside(shell, STAND_IN, f"{shell.folder}/packages"))
    assert done.exit_code == 2, done.said
    place = f"t.py, line {line}, imports" if line else "t.py imports"
    assert f"{place} horovod: its ranks need MPI to meet; each of 2 ranks that echelon starts would be" in done.said
    assert "hint: echelon run -- mpirun -n 2 python t.py …" in done.said
    assert not shell.files("echelon-runs/*")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["-n", "2", "-m", "t"], "-n 2 python -m t"),
        (["--", "torchrun", "--nproc-per-node=2", "t.py"], "-n 2 python t.py"),
        (["--scale", "off", "-n", "3", "t.py"], "-n 3 python t.py"),
        (["--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "-n", "1", "t.py"], "-n 2 python t.py"),
    ],
)
def test_lines_that_start_several_ranks(shell: Shell, words: list[str], command: str) -> None:
    """Whichever line asks for them, on one node or on several."""
    shell.script(INIT, "t.py")
    done = shell.fork("--dry-run", *words, PYTHONPATH=beside(shell, STAND_IN))
    assert done.exit_code == 2, done.said
    assert f"hint: echelon run -- mpirun {command} …" in done.said


@pytest.mark.parametrize(
    "text",
    [
        INIT + "import torch.distributed as dist\ndist.init_process_group()\n",
        "import sys\nimport lightning\nif sys.argv[1:]:\n    import horovod.torch\n",
        "import jax\njax.distributed.initialize(num_processes=2)\nif 0:\n    import horovod.torch\n",
    ],
)
def test_what_may_meet_without_horovod(shell: Shell, text: str) -> None:
    """One rank is never alone; a script that can choose starts, and init() of Horovod would end its ranks."""
    for name in ("lightning", "jax"):
        shell.script("", f"packages/{name}.py")
    path = beside(shell, STAND_IN, f"{shell.folder}/packages")
    for words, content in ((["-n", "1"], INIT), (["-n", "2"], text)):
        shell.script(content, "t.py")
        done = shell.fork("--dry-run", *words, "t.py", PYTHONPATH=path)
        assert done.exit_code == 0, done.said


@pytest.mark.parametrize(
    "words",
    [
        ["env", "A=1", "python3", "-u", "t.py"],
        ["sh", "job.sh"],
        ["python3", "-X", "dev", "t.py"],
    ],
)
def test_a_program_that_starts_the_script(shell: Shell, words: list[str]) -> None:
    """Its command line, or its shell script, names the Python script, which is read."""
    shell.script(INIT, "t.py")
    shell.script("set -e\npython -u \\\n  t.py --epochs 3\n", "job.sh")
    done = shell.fork("--dry-run", "-n", "2", "--", *words, PYTHONPATH=beside(shell, STAND_IN))
    assert done.exit_code == 2, done.said
    assert "t.py, line 1, imports horovod: its ranks need MPI to meet" in done.said
    assert "hint: echelon run -- mpirun -n 2 python t.py …" in done.said


@pytest.mark.parametrize(
    "script",
    [
        "import importlib\nimportlib.import_module('horo' + 'vod.torch').init()\n",
        INIT + "def never():\n    import torch.distributed as dist\n    dist.init_process_group()\n",
    ],
)
@pytest.mark.parametrize("words", [["t.py"], ["--", "sh", "-c", "python $0.py", "t"]], ids=["script", "program"])
def test_what_reading_does_not_see_ends_in_init(shell: Shell, script: str, words: list[str]) -> None:
    """A name that is put together, another meeting that is not used, a program: no rank trains."""
    shell.script(script, "t.py")
    environ = {"PYTHONPATH": beside(shell, STAND_IN), "HOROVOD_CONTROLLER": "mpi"}
    done = shell.run("-n", "2", "--max-restarts", "1", "--env", "HOROVOD_CONTROLLER=mpi", *words, **environ)
    assert done.exit_code == 134, done.said
    assert "failed first: Horovod's ranks need MPI to meet (echelon run -- mpirun …)" in done.said
    assert "attempt 1" not in done.said


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["HOROVOD_GLOO_RENDEZVOUS_ADDR"], "this Horovod is built with gloo alone"),
        (["MPI_Init_thread"], "its ranks need MPI to meet"),
        (["HOROVOD_GLOO_RENDEZVOUS_ADDR", "MPI_Init_thread"], "its ranks need MPI to meet"),
    ],
    ids=["gloo", "mpi", "both"],
)
@pytest.mark.parametrize("line", ["", "mpirun -n 2", "horovodrun -np 2"])
def test_how_horovod_was_built(shell: Shell, texts: list[str], reason: str, line: str) -> None:
    """With MPI, what MPI starts starts; with gloo alone nothing does, and the error says how to build it."""
    shell.script(INIT, "t.py")
    words = ["--", *line.split(), "python", "t.py"] if line else ["-n", "2", "t.py"]
    path = launcher(shell, line.split()[0]) if line else shell.environ["PATH"]
    done = shell.fork("--dry-run", *words, PYTHONPATH=built(shell, *texts), PATH=path)
    is_refused = not line or (len(texts) == 1 and "GLOO" in texts[0])
    assert done.exit_code == (2 if is_refused else 0), done.said
    if is_refused:
        assert f"t.py, line 1, imports horovod: {reason}" in done.said
        assert ("build Horovod with HOROVOD_WITH_MPI=1" in done.said) == ("gloo alone" in reason)
        assert ("echelon run -- mpirun -n 2 python t.py" in done.said) == (not line)


def test_a_controller_that_the_user_set(shell: Shell) -> None:
    """MPI would start the ranks, and gloo would look for a rendezvous; the user's own is not offered either."""
    shell.script(INIT, "t.py")
    path = launcher(shell, "mpirun")
    own = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "1234"}
    for words in (["-n", "2", "t.py"], ["--", "mpirun", "-n", "2", "python", "t.py"]):
        environ = {"PYTHONPATH": beside(shell, STAND_IN), "PATH": path, "HOROVOD_CONTROLLER": "Gloo", **own}
        done = shell.fork("--dry-run", *words, **environ)
        assert done.exit_code == 2, done.said
        assert "HOROVOD_CONTROLLER=Gloo is set, and horovodrun's rendezvous for gloo is not offered here" in done.said
        assert "hint: unset HOROVOD_CONTROLLER" in done.said
