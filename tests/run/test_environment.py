"""What a rank finds in its environment, and what it does not."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.tiers import product, some

from echelon.environment import devices, threads

from .shell import SOURCES, Shell, read_variables

SCRIPT = """
import os
with open("env-" + os.environ["RANK"], "wb") as file:
    file.write(b"".join(name + b"=" + value + bytes(1) for name, value in os.environb.items()))
"""
LAUNCHES = ("warm", "exec")
WAYS = {
    "warm": ["--launch", "warm", "train.py"],
    "exec": ["--launch", "exec", "train.py"],
    "module": ["-m", "train"],
    "program": ["--", sys.executable, "train.py"],
}
has_devices = pytest.mark.skipif(bool(devices.visible({})), reason="real devices decide here what is visible")
# all that a rank has and the shell had not
ADDED = {
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "CROSS_RANK",
    "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "LOCAL_SIZE", "CROSS_SIZE",
    "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCHELASTIC_ERROR_FILE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TF_CONFIG",
    "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE",
    "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS",
    "ECHELON_AGENT", "ECHELON_ATTEMPT", "ECHELON_MEMORY_FOLDER",
    "ECHELON_ORDER_FILE", "ECHELON_RUN_ID", "ECHELON_RUN_DIR", "ECHELON_KEY_FD",
}  # fmt: skip


def _run(shell: Shell, *arguments: str | bytes, ranks: int = 1, **environ: str) -> list[Mapping[str, str]]:
    """Run a script that writes its environment down; return what each rank wrote."""
    shell.script(SCRIPT)
    done = shell.fork("-n", str(ranks), *arguments, **environ)
    assert done.exit_code == 0, done.said
    return [read_variables(shell.folder / f"env-{rank}") for rank in range(ranks)]


@pytest.mark.parametrize("way", some(list(WAYS), 2))
def test_every_framework_finds_its_rank(shell: Shell, way: str) -> None:
    """torch, Lightning, DeepSpeed, Horovod, TensorFlow and JAX read the same place, each by its own names."""
    for rank, environ in enumerate(_run(shell, "--max-restarts", "2", "--rdzv-id", "a b", *WAYS[way], ranks=3)):
        port = environ["MASTER_PORT"]
        workers = json.loads(environ["TF_CONFIG"])["cluster"]["worker"]
        (run,) = shell.files("echelon-runs/*")
        expected = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_RANK": str(rank), "GROUP_RANK": "0",
            "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "ROLE_WORLD_SIZE": "3", "GROUP_WORLD_SIZE": "1",
            "ROLE_NAME": "default", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "2", "TORCHELASTIC_RUN_ID": "a b",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "TORCHELASTIC_ERROR_FILE": f"{run}/logs/attempt-0/rank-{rank}.error.json",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            "NODE_RANK": "0", "CROSS_RANK": "0", "CROSS_SIZE": "1", "LOCAL_SIZE": "3",
            "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": "3", "HOROVOD_LOCAL_RANK": str(rank),
            "HOROVOD_LOCAL_SIZE": "3", "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1",
            "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": str(rank), "JAX_LOCAL_DEVICE_IDS": str(rank),
            "JAX_COORDINATOR_ADDRESS": workers[0],
        }  # fmt: skip
        assert {name: environ.get(name) for name in expected} == expected
        assert json.loads(environ["TF_CONFIG"])["task"] == {"type": "worker", "index": rank}
        assert len({port, *(worker.rpartition(":")[2] for worker in workers)}) == 4
        assert {worker.rpartition(":")[0] for worker in workers} == {"127.0.0.1"}


@pytest.mark.parametrize("way", some(list(WAYS), 2))
def test_rank_has_the_users_environment_and_the_documented_names_only(shell: Shell, way: str) -> None:
    """Nothing of the start itself stays behind in a rank, and nothing of the user's is lost or changed."""
    mine = {"MY_TEXT": "two\nlines", "MY_EMPTY": "", "PYTHONHASHSEED": "3", "LD_BIND_NOW": ""}
    mine["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "3"
    for environ in _run(shell, *WAYS[way], ranks=2, **mine):
        expected = {**shell.environ, **mine}
        assert {name: environ.get(name) for name in expected} == expected
        assert set(environ) - set(expected) - {"LC_CTYPE"} == ADDED - set(mine)


@product(ranks=[1, 2, 3], launch=LAUNCHES)
def test_threads_are_the_cores_divided_by_the_ranks(shell: Shell, ranks: int, launch: str) -> None:
    """Ranks of a node share its cores, and each has at least one."""
    expected = str(max(1, threads.num_cores() // ranks))
    for environ in _run(shell, "--launch", launch, "train.py", ranks=ranks):
        assert environ["OMP_NUM_THREADS"] == expected


def test_threads_follow_the_cores_that_one_may_use(shell: Shell) -> None:
    """Cores that the process may not run on do not count."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        (environ,) = _run(shell, "train.py")
    finally:
        os.sched_setaffinity(0, before)
    assert environ["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("launch", some(LAUNCHES, 2, 1))
def test_threads_chosen_by_the_user_win(shell: Shell, launch: str) -> None:
    """What stands in the environment is not changed, and --env stands above it."""
    (environ,) = _run(shell, "--launch", launch, "train.py", OMP_NUM_THREADS="5")
    assert environ["OMP_NUM_THREADS"] == "5"
    (environ,) = _run(shell, "--launch", launch, "--env", "OMP_NUM_THREADS=7", "train.py", OMP_NUM_THREADS="5")
    assert environ["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize("way", some(list(WAYS), 2))
def test_env_option_sets_a_variable_in_every_rank(shell: Shell, way: str) -> None:
    """The value is everything after the first =, byte for byte; the last one given wins."""
    values = {
        "PLAIN": "1",
        "EQUALS": "a=b=c",
        "EMPTY": "",
        "ODD": "two words\n'\"$(x)",
        "MINE": "new",
        "LETTERS": "größe",
    }
    options: list[str | bytes] = ["--env", "PLAIN=0"]
    for name, value in values.items():
        options += ["--env", f"{name}={value}"]
    options += ["--env", b"BYTES=caf\xe9"]
    for environ in _run(shell, *options, *WAYS[way], ranks=2, MINE="old"):
        assert {name: environ.get(name) for name in values} == values
        assert os.fsencode(environ["BYTES"]) == b"caf\xe9"


@pytest.mark.parametrize("launch", some(LAUNCHES, 2))
@pytest.mark.parametrize(("letter", "count"), some([("\udcff", 100_000), ("ä", 50_000), ("x", 100_000)], 3))
def test_env_option_carries_large_values(shell: Shell, letter: str, count: int, launch: str) -> None:
    """Two variables of 100 kB each arrive whole, whatever letters they are made of."""
    value = os.fsencode(letter * count)
    (environ,) = _run(shell, "--env", b"A=" + value, "--env", b"B=" + value, "--launch", launch, "train.py")
    assert (os.fsencode(environ["A"]), os.fsencode(environ["B"])) == (value, value)


@has_devices
@product(name=["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"], seen=["0,1,2,3", "7,5,2,0"], launch=LAUNCHES)
def test_visible_own_shows_each_rank_its_own_device(shell: Shell, name: str, seen: str, launch: str) -> None:
    """The device of a rank is number 0 to it, so LOCAL_RANK is 0 and `cuda:{LOCAL_RANK}` is right."""
    ranks = _run(shell, "--visible", "own", "--launch", launch, "train.py", ranks=4, **{name: seen})
    names = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
    for rank, environ in enumerate(ranks):
        assert {other: environ[other] for other in names if other in environ} == {name: seen.split(",")[rank]}
        assert (environ["LOCAL_RANK"], environ["ECHELON_LOCAL_RANK"]) == ("0", str(rank))
        assert (environ["RANK"], environ["LOCAL_WORLD_SIZE"]) == (str(rank), "4")


@has_devices
def test_visible_own_leaves_one_filter_on_amd(shell: Shell) -> None:
    """Filters on top of each other count differently, so only the lowest one stays."""
    environ = {"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1,0"}
    first, second = _run(shell, "--visible", "own", "train.py", ranks=2, **environ)
    assert (first["ROCR_VISIBLE_DEVICES"], second["ROCR_VISIBLE_DEVICES"]) == ("5", "4")
    assert not {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"} & {*first, *second}


@has_devices
def test_visible_all_leaves_the_devices_as_they_are(shell: Shell) -> None:
    """Every rank sees what the user saw, and LOCAL_RANK is its device's number."""
    for rank, environ in enumerate(_run(shell, "train.py", ranks=2, CUDA_VISIBLE_DEVICES="3,1")):
        assert (environ["CUDA_VISIBLE_DEVICES"], environ["LOCAL_RANK"]) == ("3,1", str(rank))


@has_devices
@pytest.mark.parametrize("asked", [[], ["-n", "gpu"], ["--nproc_per_node=auto"]])
def test_default_is_one_rank_per_visible_device(shell: Shell, asked: list[str]) -> None:
    """Without -n there are as many ranks as devices."""
    shell.script(SCRIPT)
    assert shell.fork(*asked, "train.py", CUDA_VISIBLE_DEVICES="0,1,2").exit_code == 0
    assert len(shell.files("env-*")) == 3


def test_default_is_one_rank_where_there_is_no_device(shell: Shell) -> None:
    """A laptop runs the script once."""
    shell.script(SCRIPT)
    assert shell.fork("train.py", CUDA_VISIBLE_DEVICES="").exit_code == 0
    assert len(shell.files("env-*")) == 1


def test_cpu_means_one_rank_per_core(shell: Shell) -> None:
    """-n cpu starts as many ranks as there are cores to use."""
    shell.script(SCRIPT)
    assert shell.fork("-n", "cpu", "train.py", CUDA_VISIBLE_DEVICES="").exit_code == 0
    assert len(shell.files("env-*")) == threads.num_cores()


@pytest.mark.parametrize("options", [[], ["--run-dir", "mine"]], ids=["default", "run-dir"])
def test_rank_knows_its_run(shell: Shell, options: list[str]) -> None:
    """ECHELON_RUN_DIR is the run directory, there already, and ECHELON_RUN_ID is the id in its plan."""
    shell.script("import os; print(os.path.isdir(os.environ['ECHELON_RUN_DIR']))")
    assert shell.fork(*options, "train.py").stdout == b"True\n"
    shell.script(SCRIPT)
    done = shell.fork("--run-dir", "second", "train.py")
    assert done.exit_code == 0
    environ = read_variables(shell.folder / "env-0")
    assert environ["ECHELON_RUN_DIR"] == str(shell.folder / "second")
    plan = json.loads((shell.folder / "second" / "plan.json").read_text())
    assert environ["ECHELON_RUN_ID"] == plan["run_id"]


def test_run_directory_is_for_the_user_alone(shell: Shell) -> None:
    """Nobody else may look into it, and the run's secret is gone before a rank begins."""
    shell.script("import os; print(os.path.exists(os.environ['ECHELON_RUN_DIR'] + '/secret'))")
    done = shell.fork("--run-dir", "mine", "train.py")
    assert (shell.folder / "mine").stat().st_mode & 0o777 == 0o700
    assert done.stdout == b"False\n", done.said
    assert not (shell.folder / "mine" / "secret").exists()


SERVES = """
import os, socket, time
if os.environ["RANK"] == "0":
    server = socket.create_server(("", int(os.environ["MASTER_PORT"])))
    print(os.environ["MASTER_PORT"], flush=True)
    time.sleep(60)
time.sleep(60)
"""


def test_master_port_is_free_and_differs_between_runs_at_once(shell: Shell) -> None:
    """Two runs on one machine do not meet, and rank 0 can serve its port."""
    shell.script(SERVES)
    with shell.start("-n", "2", "train.py") as first, shell.start("-n", "2", "train.py") as second:
        assert first.stdout is not None
        assert second.stdout is not None
        ports = {first.stdout.readline(), second.stdout.readline()}
        assert len(ports) == 2
        assert b"" not in ports
        for process in (first, second):
            process.terminate()
            process.wait(10)


def test_master_port_of_the_user_is_not_taken_over(shell: Shell) -> None:
    """A MASTER_PORT that another run has left in the shell is of no use: each run gets its own free one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        (environ,) = _run(shell, "train.py", MASTER_PORT=port, MASTER_ADDR="elsewhere", RANK="7", WORLD_SIZE="9")
    assert environ["MASTER_PORT"] != port
    assert (environ["MASTER_ADDR"], environ["RANK"], environ["WORLD_SIZE"]) == ("127.0.0.1", "0", "1")


@product(value=[f"/no/such/folder:{SOURCES}", f"{SOURCES}:", f":{SOURCES}:/a b"], launch=LAUNCHES)
def test_pythonpath_of_the_user_is_unchanged(shell: Shell, value: str, launch: str) -> None:
    """PYTHONPATH and sys.path are what they are under python."""
    shell.script(SCRIPT + "import sys; open('path', 'w').write(repr(sys.path))")
    done = shell.run("--launch", launch, "train.py", PYTHONPATH=value)
    assert done.exit_code == 0, done.said
    assert read_variables(shell.folder / "env-0")["PYTHONPATH"] == value
    ours = (shell.folder / "path").read_text()
    environ = {**shell.environ, "PYTHONPATH": value, "RANK": "0"}
    subprocess.run([sys.executable, "train.py"], cwd=shell.folder, env=environ, check=True)
    assert ours == (shell.folder / "path").read_text()


@pytest.mark.parametrize("launch", some(LAUNCHES, 2, 1))
def test_pythonpath_that_is_not_set_stays_so(shell: Shell, launch: str) -> None:
    """A rank whose user has no PYTHONPATH has none."""
    shell.script(SCRIPT)
    environ = {name: value for name, value in shell.environ.items() if name != "PYTHONPATH"}
    starts = f"import sys; sys.path.insert(0, {SOURCES!r}); from echelon.cli import main; sys.exit(main())"
    subprocess.run(
        [sys.executable, "-c", starts, "run", "--launch", launch, "train.py"],
        cwd=shell.folder, env=environ, check=True, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    assert "PYTHONPATH" not in read_variables(shell.folder / "env-0")


@pytest.mark.parametrize("launch", some(LAUNCHES, 2))
def test_sitecustomize_of_the_user_still_runs(shell: Shell, launch: str) -> None:
    """A site's own start-up code runs in every rank and is what `import sitecustomize` gives."""
    site = shell.script("import builtins; builtins.greeting = 'from the site'\n", "site/sitecustomize.py")
    shell.script("import sitecustomize; print(greeting, sitecustomize.__file__)")
    done = shell.run("--launch", launch, "-n", "2", "--show", "1", "train.py", PYTHONPATH=f"{site.parent}:{SOURCES}")
    assert done.stdout.decode() == f"from the site {site}\n", done.said


@pytest.mark.parametrize("launch", some(LAUNCHES, 2, 1))
def test_sitecustomize_that_fails_does_not_end_the_run(shell: Shell, launch: str) -> None:
    """Python reports an error in sitecustomize and goes on; so does a rank."""
    site = shell.script("raise ValueError('broken site')\n", "site/sitecustomize.py")
    shell.script("print('ran')")
    done = shell.run("--launch", launch, "train.py", PYTHONPATH=f"{site.parent}:{SOURCES}")
    assert (done.stdout, done.exit_code) == (b"ran\n", 0), done.said
    assert "broken site" in done.said


@pytest.mark.parametrize(("scale", "code", "told"), [("data", 127, "each rank would train by itself"), ("off", 0, "")])
def test_wrapper_of_python_scales_nothing_silently(shell: Shell, scale: str, code: int, told: str) -> None:
    """A wrapper may drop PYTHONPATH, and with it all that would scale the script: each rank would train alone."""
    wrapper = shell.script(f'#!/bin/bash\nexec -a "$0" {sys.executable} "$@"\n', "environment/bin/python")
    wrapper.chmod(0o755)
    shutil.copy(Path(sys.prefix, "pyvenv.cfg"), wrapper.parents[1])
    (wrapper.parents[1] / "lib").symlink_to(Path(sys.prefix, "lib"))
    script = shell.script("import torch; print('trained')" if scale == "data" else "print('trained')")
    command = [str(wrapper), "-m", "echelon", "run", "-n", "2", "--scale", scale, str(script)]
    done = subprocess.run(command, cwd=shell.folder, env=shell.environ, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "trained" in done.stdout) == (code, code == 0), done.stderr
    assert told in done.stderr
    assert f"{wrapper} is a wrapper, which may drop PYTHONPATH" in done.stderr


def test_interpreter_of_the_ranks_is_ones_own(shell: Shell) -> None:
    """The Python that started echelon runs the ranks, virtual environment and all."""
    shell.script("import sys; print(sys.executable, sys.prefix, sep='|')")
    assert shell.run("train.py").stdout.decode() == f"{sys.executable}|{sys.prefix}\n"
    assert Path(sys.executable).exists()
