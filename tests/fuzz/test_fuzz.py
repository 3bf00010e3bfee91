"""Odd command lines, odd environments and odd files: an answer, or a refusal that names the reason."""

import contextlib
import io
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.fuzz.promise import COUNTS, NODE_LISTS, NUMBERS, answer, judge, keep, odd, profile, surrounded

from echelon.cli import COMMANDS
from echelon.cli import help as helps
from echelon.cli.options import Option
from echelon.environment import become
from echelon.environment.agent_place import agent_task
from echelon.environment.errors import WrongEnvironmentError
from echelon.errors import UsageError
from echelon.scheduler.slurm import allocation

FILES = (
    "t.py",
    "broken.py",
    "job.sh",
    "empty",
    "binary",
    "latin.py",
    "folder",
    "pipe",
    "gone",
    "",
    "-",
    "/dev/zero",
    "/dev/null",
)
# what starts nothing, whatever else stands in the line
QUIET = {
    "run": ["--dry-run"],
    "submit": ["--dry-run"],
    "checkpoint": ["ls"],
    "clean": ["--dry-run"],
    "plan": [],
    "lint": [],
    "machines": [],
    "runs": [],
    "watch": [],
    "report": [],
    "profile": ["--read"],
    "topology": [],
    "completion": [],
    "man": [],
}
HARMFUL = {"--learn", "--fix", "--out", "--web", "--help", "-h"}
USUAL = {
    "plan": ["--machine", "lumi", "--gpus", "8"],
    "submit": ["--machine", "lumi", "--time", "1h", "--account", "p"],
    "run": ["-n", "2"],
}
LAUNCHERS = ("torchrun", "accelerate launch", "deepspeed", "mpirun", "srun", "horovodrun")
THEIRS = (
    "-n", "-np", "-N", "--nproc_per_node", "--nnodes", "--hostfile", "-H", "--num_gpus", "--num_nodes", "--include",
    "--ntasks", "--num_processes", "--num_machines", "--rdzv_endpoint", "--node_rank", "--config_file", "--mem",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files of each kind."""
    (tmp_path / "t.py").write_text("print('here')\n")
    (tmp_path / "broken.py").write_text("x = (\n")
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=1:00:00\nsrun python t.py\n")
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 8)
    (tmp_path / "latin.py").write_bytes(b"print('\xe9')\n")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def options(command: str) -> list[Option]:
    return [option for option in helps.of(command).options if not HARMFUL.intersection(option.names)]


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A command line that starts nothing."""
    command = draw(st.sampled_from(sorted(QUIET)))
    words = [command, *QUIET[command]]
    if draw(st.booleans()):
        words += USUAL.get(command, [])
    rows = options(command)
    for option in draw(st.lists(st.sampled_from(rows), max_size=3)) if rows else ():
        words.append(draw(st.sampled_from(option.names)))
        if option.value:
            words.append(draw(odd() | st.sampled_from(FILES)))
    if draw(st.integers(0, 9)) == 0:
        words.append(draw(odd()))
    if command in ("run", "submit") and draw(st.integers(0, 2)) == 0:
        words += ["--", *draw(st.sampled_from(LAUNCHERS)).split()]
        for name in draw(st.lists(st.sampled_from(THEIRS), max_size=2)):
            words += [name, draw(odd() | st.sampled_from(FILES) | st.sampled_from(NODE_LISTS))]
    if command == "machines" and words[1:2] == ["learn"]:
        words = ["machines"]  # it asks a cluster
    return [*words, *draw(st.lists(st.sampled_from(FILES), max_size=2))]


@given(line=lines())
@profile(250)
@example(line=["plan", "--machine", "lumi", "--gpus", "9" * 5000])
@example(line=["submit", "--machine", "lumi", "--time", "1h", "--min-nodes", "²", "--dry-run", "t.py"])
@example(line=["run", "--dry-run", "a\nb"])
@example(line=["²"])
def test_command_lines(folder: Path, line: list[str]) -> None:
    """Every command line is answered, or refused with one reason and one repair."""
    keep(folder, line)


ODD = ("", "²", "9" * 5000, "-1", "1e999", "\udcff", "a\nb", "0-99999999999")


@pytest.mark.parametrize("command", sorted(QUIET))
def test_every_option_with_each_odd_value(folder: Path, command: str) -> None:
    """No option of any command takes an odd value for a mistake of echelon's."""
    target = {"run": ["t.py"], "submit": ["t.py"], "lint": ["t.py"]}.get(command, [])
    for option in options(command):
        for value in ODD if option.value else ():
            keep(folder, [command, *QUIET[command], *USUAL.get(command, []), option.names[-1], value, *target])


def test_every_command_is_tried() -> None:
    """What the fuzzing leaves out starts processes, and stands in the table of classic cases."""
    assert set(QUIET) | {
        "exec",
        "prove",
        "bench",
        "rehearse",
        "check",
        "fit",
        "frameworks",
        "pack",
        "pool",
        "sweep",
    } == set(COMMANDS)


SLURM = {
    "SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2",
    "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURMD_NODENAME": "n1",
}  # fmt: skip
OTHERS = {
    "SLURM_CPUS_PER_TASK": "2", "SLURM_CPUS_ON_NODE": "2", "SLURM_NTASKS_PER_NODE": "1", "SLURM_HET_SIZE": "1",
    "SLURM_DISTRIBUTION": "arbitrary", "SLURM_HOSTFILE": "pipe", "SLURM_ARBITRARY_NODELIST": "n1,n2",
    "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "PALS_LOCAL_RANKID": "0",
    "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0",
    "COLUMNS": "80", "ECHELON_MACHINES": "pipe", "ECHELON_MACHINE": "lumi", "DS_ENV_FILE": "pipe", "TERM": "dumb",
}  # fmt: skip


@st.composite
def environments(draw: st.DrawFn) -> dict[str, str]:
    """A launcher's variables: some of them odd, missing, or of another launcher."""
    environ = dict(draw(st.sampled_from([SLURM, {}, {name: OTHERS[name] for name in OTHERS if "RANK" in name}])))
    for name in draw(st.lists(st.sampled_from(sorted({**SLURM, **OTHERS})), max_size=3)):
        how = draw(st.integers(0, 9))
        usual = {**SLURM, **OTHERS}[name]
        if how == 0:
            environ.pop(name, None)
        else:
            environ[name] = usual if how == 1 else draw(odd() | st.sampled_from(NODE_LISTS) | st.sampled_from(COUNTS))
    return {name: value for name, value in environ.items() if "\0" not in value}


def refused(environ: dict[str, str]) -> list[str]:
    """Return the reasons for which the readers of an environment refuse it."""
    reasons = []
    for read in (
        lambda: become.rank_environment(environ),
        lambda: become.rank_environment(environ, visible="own"),
        lambda: allocation.read(environ, lambda _job: {}),
        lambda: agent_task(environ),
    ):
        try:
            read()
        except (WrongEnvironmentError, UsageError) as error:
            assert error.message
            assert error.hint
            reasons.append(error.message)
    return reasons


@given(environ=environments())
@profile(500)
@example(environ={**SLURM, "SLURM_PROCID": "²"})
@example(environ={**SLURM, "SLURM_JOB_NODELIST": "n[0-999999999999]"})
@example(environ={**SLURM, "SLURM_STEP_TASKS_PER_NODE": "1(x999999999999)"})
@example(environ={**SLURM, "SLURM_HET_SIZE": "9" * 5000})
def test_environments_are_read(folder: Path, environ: dict[str, str]) -> None:
    """Which rank this is, and in which allocation, is known or refused, with a reason and a repair."""
    with surrounded(folder, environ):
        refused(environ)


@given(environ=environments(), command=st.sampled_from(["run", "plan", "submit", "lint", "machines", "runs"]))
@profile(60)
def test_commands_in_odd_environments(folder: Path, environ: dict[str, str], command: str) -> None:
    """A command that starts nothing keeps the promise in any environment."""
    target = {"run": ["t.py"], "submit": ["t.py"], "lint": ["job.sh"]}.get(command, [])
    keep(folder, [command, *QUIET[command], *USUAL.get(command, []), *target], environ)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_PROCID", "2"), ("SLURM_STEP_NUM_TASKS", "3"), ("SLURM_STEP_NUM_NODES", "3"),
        ("SLURM_JOB_NUM_NODES", "3"), ("SLURM_JOB_NODELIST", "n[1-3]"), ("SLURM_STEP_NODELIST", "n[1-3]"),
        ("SLURM_STEP_TASKS_PER_NODE", "1(x3)"), ("SLURMD_NODENAME", "m1"), ("SLURM_JOB_ID", "²"),
    ],
)  # fmt: skip
def test_variables_of_a_step_that_contradict_each_other(folder: Path, name: str, value: str) -> None:
    """The refusal names the variable and its value; nobody waits for tasks that cannot come."""
    said = keep(folder, ["run", "--dry-run", "t.py"], {**SLURM, name: value})
    assert said.exit_code == 2
    assert f"{name}={value}" in said.said.replace("'", "")


@pytest.mark.parametrize("name", ["SLURM_JOB_NUM_NODES", "SLURM_NNODES"])
def test_variables_of_a_job_that_contradict_each_other(folder: Path, name: str) -> None:
    """In a batch script too, the number of nodes is that of the list."""
    job = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2"}
    said = keep(folder, ["run", "--dry-run", "t.py"], {**job, name: "3"})
    assert said.exit_code == 2
    assert f"{name}=3 and SLURM_JOB_NODELIST=n[1-2], which has 2 nodes" in said.said
    assert keep(folder, ["run", "--dry-run", "t.py"], job).exit_code == 0


TEXTS = (
    "print('here')\n",
    "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:4\n#SBATCH --mem=60G\nsrun -n 8 python t.py\n",
    "worker-0 slots=4\nworker-1 slots=4\n", '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2}',
    'name = "here"\ntitle = "Here"\n\n[[partitions]]\nname = "gpu"\nmax_time = "1:00:00"\n', "n1*4\n",
)  # fmt: skip


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """The bytes of a file: a good one that was changed, or none that anybody means."""
    if draw(st.integers(0, 3)) == 0:
        return draw(st.binary(max_size=200))
    text = draw(st.sampled_from(TEXTS)).encode()
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        piece = draw(odd().map(lambda word: word.encode("utf-8", "surrogateescape")) | st.binary(max_size=3))
        text = text[:start] + piece + text[start + draw(st.integers(0, 20)) :]
    return text


READERS = {
    "run": ["run", "--dry-run", "FILE"],
    "lint": ["lint", "FILE"],
    "lint.sh": ["lint", "FILE.sh"],
    "mpirun": ["run", "--dry-run", "--", "mpirun", "--hostfile", "FILE", "-np", "2", "python", "t.py"],
    "deepspeed": ["run", "--dry-run", "--", "deepspeed", "--hostfile", "FILE", "t.py"],
    "horovodrun": ["run", "--dry-run", "--", "horovodrun", "-np", "2", "--hostfile", "FILE", "python", "t.py"],
    "settings": ["run", "-n", "2", "--dry-run", "t.py", "--deepspeed_config", "FILE.json"],
    "machine": ["machines", "here"],
    "plan": ["plan", "--machine", "here", "--gpus", "2"],
    "runs": ["runs", "r"],
    "clean": ["clean", "--dry-run", "r"],
}


@given(reader=st.sampled_from(sorted(READERS)), content=contents())
@profile(250)
@example(reader="mpirun", content=b"worker-0 slots=" + b"9" * 5000)
@example(reader="deepspeed", content=b"\xff\xfe")
@example(reader="lint.sh", content="#SBATCH --ntasks-per-node=²\n#SBATCH --gpus=²\nsrun -n ² python t.py\n".encode())
@example(reader="run", content=b"\x01\x0b\x1b[31m")
@example(reader="runs", content=b"[]")
@example(reader="settings", content=b"[" * 100_000)
@example(reader="machine", content=b"a = " + b"[" * 10_000)
def test_files(folder: Path, reader: str, content: bytes) -> None:
    """A file is read, or refused with its name."""
    names = ("FILE", "FILE.sh", "FILE.json", "here.toml", "r/events.jsonl", "r/report.json", "r/plan.json")
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    keep(folder, READERS[reader], {"ECHELON_MACHINES": "here.toml"} if reader in ("machine", "plan") else {})


@pytest.mark.parametrize("reader", sorted(set(READERS) - {"machine", "plan", "runs", "clean", "settings"}))
@pytest.mark.parametrize("path", ["pipe", "/dev/zero", "folder", "gone", "endless"])
def test_files_that_are_none(folder: Path, reader: str, path: str) -> None:
    """A pipe without a writer, a device, a folder and a file without an end are refused, and keep nobody waiting."""
    with (folder / "endless").open("wb") as file:
        file.truncate(1 << 40)
    words = [path if word.startswith("FILE") else word for word in READERS[reader]]
    assert keep(folder, words).exit_code == 2


@given(words=st.lists(odd(NUMBERS) | st.sampled_from(["--visible", "own", "all", "--", "true"]), max_size=3))
@profile(60)
def test_exec_reads_its_command_line(folder: Path, words: list[str]) -> None:
    """`echelon exec` knows its program, shows its help, or refuses the line."""
    with surrounded(folder, {}), contextlib.redirect_stdout(io.StringIO()):
        try:
            assert become.read(words).program
        except WrongEnvironmentError as error:
            assert error.message
        except SystemExit as end:
            assert end.code == 0


def test_the_promise_can_be_broken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted mistake is seen: int() of a digit that is none."""
    monkeypatch.setattr("echelon.environment.digits.is_number", str.isdigit)
    with pytest.raises(ValueError, match="invalid literal"):
        answer(folder, ["run", "--dry-run", "t.py"], {**SLURM, "SLURM_PROCID": "²"})
    monkeypatch.undo()
    silent = answer(folder, ["plan", "--machine", "lumi"], {})._replace(exit_code=2, said="")
    with pytest.raises(AssertionError):
        judge(silent, "a refusal without a word")
