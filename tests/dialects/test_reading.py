"""What is read from a launcher's line, and what is refused: nothing is started here."""

import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from echelon.cli.launcher import with_launcher, with_line
from echelon.cli.options import scan
from echelon.cli.run import read_job
from echelon.dialects import accelerate
from echelon.dialects.accelerate import ask
from echelon.dialects.node_layout import with_node_layout
from echelon.dialects.translate import LauncherLine, recognise
from echelon.errors import UsageError
from echelon.host import Finished, Host, RecordedHost
from echelon.scheduler.protocol import Allocation
from echelon.scheduler.slurm.step import read_list
from echelon.spec import Job

from .conftest import BESIDE, PATH, require

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TORCHRUN: list[dict[str, Any]] = tomllib.loads((Path(__file__).parents[1] / "torchrun_lines.toml").read_text())["line"]
TWO_NODES = Allocation(
    job_id="7", nodes=("nid1", "nid2"), devices=(), is_task=False, num_tasks=1, task_rank=0, step_nodes=()
)


@pytest.fixture(autouse=True)
def own_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let `python` be the one that runs the tests, and no configuration of a user's be found."""
    monkeypatch.setenv("PATH", PATH)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # which a line may set
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.chdir(tmp_path)


def job(text: str, allocation: Allocation | None = None) -> Job:
    """Return the job that `echelon run` makes of its words."""
    scanned, line = with_launcher(scan(text.split()))
    assert line is not None
    return with_node_layout(with_line(read_job(scanned), line), allocation, Host())


def refusal(text: str, allocation: Allocation | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        job(text, allocation)
    assert caught.value.hint
    return f"{caught.value.message}\n{caught.value.hint}"


def read(text: str) -> LauncherLine:
    line = recognise(text.split())
    assert line is not None
    return line


@pytest.mark.parametrize("row", TORCHRUN, ids=lambda row: str(TORCHRUN.index(row)))
def test_torchrun_means_the_same_after_the_dashes(row: dict[str, Any]) -> None:
    """Each line of torchrun_lines.toml asks for the same job with torchrun's name and without."""
    text = row["line"].replace('"$@"', "x")
    for name, value in row["environment"].items():
        text = text.replace(f"${{{name}}}", value).replace(f"${name}", value)
    words = text.replace("'", "").replace('"', "").split()
    place = 1 if words[0] == "torchrun" else 3
    alone = scan(words[place:])
    merged, line = with_launcher(scan(["--", *words]))
    assert line is not None
    expected = {key: values for key, values in alone.values.items() if key != "no_python"}
    assert {key: values[-1] for key, values in merged.values.items()} == {
        key: values[-1] for key, values in expected.items()
    }
    assert merged.rest == alone.rest


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("python train.py", None), ("printenv", None), ("accelerate config", None), ("python -m torch.utils", None),
        ("/opt/bin/torchrun x.py", "torchrun"), ("accelerate-launch x.py", "accelerate launch"),
        ("python3 -m deepspeed.launcher.runner x.py", "deepspeed"), ("orterun -n 1 true", "orterun"),
        ("/opt/openmpi/bin/mpirun -n 1 true", "mpirun"),
    ],
)  # fmt: skip
def test_launchers_are_recognised_by_name(words: str, expected: str | None) -> None:
    """By their own name, with a path, and as a module; nothing else is touched."""
    line = recognise(words.split())
    assert (line.launcher if line else None) == expected


def test_arguments_pass_byte_for_byte() -> None:
    """What follows the script is never interpreted."""
    words = ["deepspeed", "--num_gpus", "2", "train.py", "--num_gpus", "9", "a b", "$(x)", "--", "--include"]
    line = recognise(words)
    assert line is not None
    assert line.command.arguments == ("--num_gpus", "9", "a b", "$(x)", "--", "--include")


def test_python_of_this_environment_is_a_script() -> None:
    """`mpirun python train.py` is read as a script; another Python, or one with options, stays a program."""
    assert read("mpirun -n 2 python -u train.py a").command.kind == "script"
    assert read("mpirun -n 2 python -m package.train").command.kind == "module"
    assert read(f"mpirun -n 2 {BESIDE}/python train.py").command.kind == "script"
    assert read("mpirun -n 2 /opt/other/bin/python train.py").command.kind == "program"
    assert read("mpirun -n 2 python -O train.py").command.kind == "program"


def test_mpis_own_options_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """mpirun keeps its words; variables with a value are set in every rank."""
    line = read("/x/mpirun -np 4 -x A=1 -x PATH --map-by ppr:2:node -mca btl ^openib python train.py --mca")
    assert line.mpi is not None
    assert line.mpi.words == (
        "/x/mpirun", "-np", "4", "-x", "A=1", "-x", "PATH", "--map-by", "ppr:2:node", "-mca", "btl", "^openib"
    )  # fmt: skip
    assert (line.environ, line.num_ranks, line.command.arguments) == ((("A", "1"),), 4, ("--mca",))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("deepspeed --hostfile hosts train.py", (2, 4, "")),
        ("deepspeed --hostfile hosts --num_nodes 1 --num_gpus 2 train.py", (1, 2, "")),
        ("deepspeed -H hosts -i nid1@nid2 train.py", (2, 4, "0,1,2,3")),
        ("deepspeed --hostfile hosts --include nid1:0,2@nid2:2,0 train.py", (2, 2, "0,2")),
        ("deepspeed --hostfile hosts --exclude nid2 train.py", (1, 4, "0,1,2,3")),
        ("deepspeed --hostfile hosts --exclude nid1:0@nid2:0 train.py", (2, 3, "1,2,3")),
    ],
)
def test_deepspeeds_choice_of_devices(text: str, expected: tuple[int, int, str]) -> None:
    """Host file, --include and --exclude: nodes, ranks on each, and the devices that they see."""
    Path("hosts").write_text("# two\nnid1 slots=4\n\nnid2 slots=4\n")
    line = read(text)
    options = {given.key: int(given.value) for given in line.options}
    assert (options["nnodes"], options["nproc_per_node"], line.devices) == expected


@pytest.mark.parametrize(
    ("text", "ranks_per_node"),
    [("-- mpirun -n 4 true", 2), ("-- accelerate launch --num_processes 6 t.py", 3), ("-- srun -n 2 true", 1),
     ("-n 2 -- accelerate launch --num_processes 4 t.py", 2), ("--nnodes 1 -- mpirun -n 3 true", 3)],
)  # fmt: skip
def test_a_number_for_all_nodes_is_divided(monkeypatch: pytest.MonkeyPatch, text: str, ranks_per_node: int) -> None:
    """mpirun, accelerate and srun count the ranks of all nodes together."""
    monkeypatch.setattr("echelon.dialects.node_layout._with_mpi", lambda launcher, *_: launcher)
    assert job(text, TWO_NODES).ranks_per_node == ranks_per_node


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("-n 4 -- torchrun --nproc-per-node=2 t.py",
         ("-n 4 asks for 4", "--nproc-per-node=2 asks for 2", "echelon run -n 4 t.py")),
        ("--nnodes 3 -- torchrun --nnodes=2 t.py", ("--nnodes 3", "for 2", "echelon run -- torchrun --nnodes=2")),
        ("--max-restarts 1 -- torchrun --max-restarts=3 t.py", ("restarts", "for 3")),
        ("-n 4 -- deepspeed --num_gpus 2 t.py", ("-n 4 asks for 4", "--num_gpus 2 asks for 2")),
        ("-n 3 -- accelerate launch --num_processes 2 t.py",
         ("3 per node on 1 node make 3", "--num_processes 2", "2 in all")),
        ("-n 3 -- mpirun -n 2 true", ("3 per node", "mpirun -n 2")),
        ("-- srun --ntasks-per-node=4 torchrun t.py", ("two launchers", "starts 4 of torchrun", "--ntasks-per-node=1")),
        ("-- srun -n 2 mpirun -n 2 true", ("two launchers", "srun and mpirun")),
        ("-m -- torchrun t.py", ("-m names a module", "torchrun")),
        ("--max-restarts 2 -- mpirun -n 2 true", ("--max-restarts 2", "MPI")),
        ("--launch warm -- mpirun -n 2 true", ("--launch warm", "MPI")),
        ("--scale data -- mpirun -n 2 python t.py", ("--scale data", "mpirun")),
    ],
)  # fmt: skip
def test_two_launchers_that_disagree(text: str, parts: Sequence[str]) -> None:
    """Both numbers, and a line to paste."""
    said = refusal(text)
    assert all(part in said for part in parts), said


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("-- torchrun", ("needs a script", "echelon run -- torchrun")),
        ("-- torchrun --nnodes", ("--nnodes needs a value",)),
        ("-- torchrun --no-pithon t.py", ("does not know the option --no-pithon", "--no-python")),
        ("-- accelerate launch --num_proceses 2 t.py", ("--num_proceses", "--num-processes")),
        ("-- accelerate launch --num_processes two t.py", ("--num_processes two", "whole number")),
        ("-- accelerate launch --mixed_precision fp17 t.py", ("fp17", "no, fp16, bf16, fp8")),
        ("-- accelerate launch --tpu t.py", ("TPUs",)),
        ("-- accelerate launch --cpu=1 t.py", ("takes no value",)),
        ("-- deepspeed --autotuning run t.py", ("--autotuning run", "without echelon")),
        ("-- deepspeed --num_gpus 0 t.py", ("--num_gpus 0", "at least 1")),
        ("-- deepspeed --hostfile none t.py", ("none", "cannot read")),
        ("-- deepspeed --include localhost:0 --num_gpus 1 t.py", ("exclude each other",)),
        ("-- deepspeed --hostfile bad t.py", ("line 2 of bad", "nid2 slots four", "slots=4")),
        ("-- deepspeed --hostfile uneven t.py", ("nid1: 4, nid2: 2",)),
        ("-- deepspeed --hostfile uneven --include nid3 t.py", ("nid3", "nid1, nid2")),
        ("-- deepspeed --hostfile even t.py", ("nid1, nid2", "ssh", "salloc --nodes=2")),
        ("-- mpirun -n 2 --bogus true", ("--bogus",)),
        ("-- mpirun -n 1 true : -n 1 false", ("several programs",)),
        ("-- mpirun -H a:2,b:2 true", ("a, b", "ssh")),
        ("-- horovodrun python t.py", ("needs -np",)),
        ("-- horovodrun -np 2 --min-np 1 python t.py", ("--min-np 1",)),
        ("-- horovodrun --gloo -np 2 python t.py", ("--gloo", "not offered here", "HOROVOD_WITH_MPI=1")),
        ("-- srun -n 2 python t.py", ("outside an allocation", "salloc")),
        ("-- srun --nodelist a python t.py", ("--nodelist a", "--nnodes")),
    ],
)  # fmt: skip
def test_wrong_lines_are_refused(text: str, parts: Sequence[str]) -> None:
    """One error that names the word, and a repair."""
    Path("bad").write_text("nid1 slots=4\nnid2 slots four\n")
    Path("uneven").write_text("nid1 slots=4\nnid2 slots=2\n")
    Path("even").write_text("nid1 slots=4\nnid2 slots=4\n")
    said = refusal(text)
    assert all(part in said for part in parts), said


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("-- mpirun -n 3 true", ("2 nodes cannot share 3 ranks evenly", "--nnodes 1")),
        ("-- mpirun -n 4 -H a:2,b:2 true", ("a, b", "nid1, nid2")),
        ("-n 1 -- accelerate launch --num_processes 4 t.py", ("1 per node on 2 nodes make 2", "4 in all")),
    ],
)
def test_lines_that_do_not_fit_the_allocation(text: str, parts: Sequence[str]) -> None:
    """The job's own nodes against the line's."""
    said = refusal(text, TWO_NODES)
    assert all(part in said for part in parts), said


def test_this_machine_may_be_named() -> None:
    """A host list that names this machine alone means here."""
    assert job(f"-- deepspeed --include {socket.gethostname()}:0 t.py").ranks_per_node == 1


def test_what_has_no_meaning_is_named_once_with_its_reason() -> None:
    """Accepted and said; DeepSpeed's own port is one of them."""
    line = read("deepspeed --master_port 1234 --bind_cores_to_rank --launcher slurm t.py")
    assert dict(line.no_meaning) == {
        "--master_port": "echelon takes a free port",
        "--bind_cores_to_rank": "--bind binds ranks",
        "--launcher": "echelon starts the ranks",
    }


def test_accelerates_silent_single_process_is_named() -> None:
    """`--cpu --num_processes 2` starts one process without echelon; here it starts two, and that is said."""
    line = read("accelerate launch --cpu --num_processes 2 t.py")
    assert line.num_ranks == 2
    assert "would start one process" in line.note


@pytest.mark.framework
def test_simple_options_mean_what_accelerate_says() -> None:
    """What is read here is what accelerate itself sets for the same words."""
    require("accelerate")
    words = ["--num_processes", "2", "--multi_gpu", "--mixed_precision", "bf16", "--dynamo_backend", "inductor",
             "--debug", "t.py"]  # fmt: skip
    ours = accelerate.line("accelerate launch", words, ask)
    theirs = ask(words)
    assert dict(ours.environ) == dict(theirs.environ)
    assert (ours.num_ranks, theirs.num_machines) == (theirs.num_processes, 1)


def test_a_default_configuration_is_asked_about(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where `accelerate config` has left a file, accelerate is asked; without accelerate the extra is named."""
    folder = tmp_path / "hf" / "accelerate"
    folder.mkdir(parents=True)
    (folder / "default_config.yaml").write_text("num_processes: 2\n")
    asked: list[Sequence[str]] = []

    def no_accelerate(words: Sequence[str]) -> Any:
        asked.append(words)
        raise UsageError("not installed", hint="pip install 'echelon[accelerate]'")

    with pytest.raises(UsageError):
        accelerate.line("accelerate launch", ["t.py"], no_accelerate)
    assert asked == [["t.py"]]


def test_slurms_list_of_protocols() -> None:
    """As Slurm 22.05 and 24.05 print it."""
    assert read_list("MPI plugin types are...\n\tpmix\n\tnone\n\tcray_shasta\n\tpmi2\nspecific pmix plugin versions "
                     "available: pmix_v4\n") == ("pmix", "none", "cray_shasta", "pmi2")  # fmt: skip
    assert read_list("srun: fatal: Could not establish a configuration source\n") == ()


def test_nothing_of_the_environment_is_left_behind() -> None:
    """Reading a line changes nothing but the devices that it names."""
    before = dict(os.environ)
    for text in ("-- torchrun --nproc-per-node=2 t.py", "-- accelerate launch --num_processes 2 t.py"):
        job(text)
    assert dict(os.environ) == before
    assert sys.executable


LISTED = "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\n"
BROKEN = "srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types\n"
OPEN_MPI = "mpirun (Open MPI) 5.0.11\n"
MPICH = "HYDRA build details:\n    Version:  5.0.2\n"


def machine(*, listed: str, mpirun: str, broken: str = "") -> RecordedHost:
    """Return a machine whose srun and mpirun said this."""
    tested = ("--test-only", "--nodes=1", "--ntasks=1", "true")
    said = {("srun", "--mpi=list"): listed, ("mpirun", "--version"): mpirun}
    said |= {("srun", f"--mpi={name}", *tested): broken for name in ("pmix", "pmi2")}
    answers = {argv: Finished(exit_code=0, stdout=text, stderr="") for argv, text in said.items()}
    return RecordedHost(environ={}, answers=answers)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (machine(listed=LISTED, mpirun=OPEN_MPI), ("pmix", ())),
        (machine(listed=LISTED, mpirun=MPICH), ("pmi2", ())),
        (machine(listed=LISTED, mpirun=OPEN_MPI, broken=BROKEN),
         ("mpirun", ("mpirun", "--bind-to", "none", "-n", "4"))),
        (machine(listed=LISTED, mpirun="an MPI that nobody knows"), ("mpirun", ("mpirun", "-n", "4"))),
        (machine(listed="\tnone\n", mpirun=MPICH), ("mpirun", ("mpirun", "-n", "4"))),
    ],
    ids=["open-mpi", "mpich", "pmix-cannot-be-loaded", "unknown-mpi", "no-protocol"],
)  # fmt: skip
def test_what_starts_an_mpi_program(
    monkeypatch: pytest.MonkeyPatch, host: RecordedHost, expected: tuple[str, tuple[str, ...]]
) -> None:
    """Slurm where it speaks the library's protocol and can load it, else the line's own mpirun."""
    monkeypatch.setattr("echelon.dialects.node_layout.shutil.which", lambda name: f"/usr/bin/{name}")
    scanned, line = with_launcher(scan(["--", "mpirun", "-n", "4", "true"]))
    assert line is not None
    launcher = with_node_layout(with_line(read_job(scanned), line), TWO_NODES, host).launcher
    assert launcher is not None
    assert (launcher.mpi, launcher.words) == expected


@pytest.mark.parametrize("text", ["-- mpirun --bind-to core -n 2 true", "--bind off -- mpirun -n 2 true"])
def test_own_bindings_of_mpirun_stay(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Who says where MPI's processes go, or wants no binding, keeps it."""
    monkeypatch.setattr("echelon.dialects.node_layout.shutil.which", lambda name: f"/usr/bin/{name}")
    scanned, line = with_launcher(scan(text.split()))
    assert line is not None
    host = machine(listed="", mpirun=OPEN_MPI)
    launcher = with_node_layout(with_line(read_job(scanned), line), None, host).launcher
    assert launcher is not None
    assert "none" not in launcher.words


def test_horovodrun_stays_on_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reaches others by ssh, and starts its ranks where it is called: both are checked against the allocation."""
    monkeypatch.setattr("echelon.dialects.node_layout.shutil.which", lambda name: f"/usr/bin/{name}")
    one = replace(TWO_NODES, nodes=("nid1",))
    assert "reaches its 2 nodes by ssh" in refusal("-- horovodrun -np 2 true", TWO_NODES)
    assert "not the node of job 7 (nid1)" in refusal("-- horovodrun -np 2 true", one)
    here = replace(TWO_NODES, nodes=(socket.gethostname(),))
    assert job("-- horovodrun -np 2 true", here).ranks_per_node == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("horovodrun -np 2 true", "horovodrun --mpi -np 2"),
        ("horovodrun --verbose --mpi -np 2 true", "horovodrun --verbose --mpi -np 2"),
        ("horovodrun --jsrun -np 2 true", "horovodrun --jsrun -np 2"),
        ("python -m horovod.runner.launch -np 2 true", "python -m horovod.runner.launch --mpi -np 2"),
    ],
)
def test_horovodrun_starts_by_mpi(monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    """Its own gloo would take over without a word where Horovod was built without MPI."""
    monkeypatch.setattr("echelon.dialects.node_layout.shutil.which", lambda name: f"{BESIDE}/{name}")
    launcher = job(f"-- {text}").launcher
    assert launcher is not None
    assert launcher.words == tuple(words.split())


def test_srun_without_numbers_has_those_of_the_job() -> None:
    """As in a batch script with --ntasks-per-node; a number of its own wins."""
    asked = replace(TWO_NODES, tasks_per_node=3)
    assert job("-- srun python t.py", asked).ranks_per_node == 3
    assert job("-- srun --ntasks-per-node=2 python t.py", asked).ranks_per_node == 2
    assert job("-- srun -n 8 python t.py", asked).ranks_per_node == 4
    assert job("-- srun python t.py", TWO_NODES).ranks_per_node == 0
