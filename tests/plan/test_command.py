"""`echelon plan` and `echelon submit` on the command line, with right and wrong input."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests import warm

ACCOUNT = "--account project_1"
LUMI = f"submit --machine lumi {ACCOUNT} -t 1h"

# command line, part of the message, part of the hint
WRONG = [
    ("plan --machine lumi", "--gpus or --nodes is required", "--gpus 8   or --gpus 4"),
    ("plan --machine lumi --gpus 0", "--gpus 0: give a whole number of at least 1", "--gpus 1"),
    ("plan --machine lumi --gpus -1", "--gpus -1: give a whole number", "--gpus 1"),
    ("plan --machine lumi --gpus x", "--gpus x: give a whole number", "--gpus 1"),
    ("plan --machine lumi --nodes 0", "--nodes 0: give a whole number", "--nodes 1"),
    ("plan --machine lumi --gpus 8 -t 1:70", "--time 1:70: minutes and seconds go from 0 to 59", "1:10:00"),
    ("plan --machine lumi --gpus 8 -t soon", "--time soon: not a time; a time is", "--time 1:00:00"),
    ("plan --machine lumi --gpus 8 -t 0", "--time 0: the time must be more than nothing", "--time 1:00:00"),
    ("plan --machine lumi --gpus 8 -t ''", "--time '': not a time", "--time 1:00:00"),
    ("plan --machine lumi --gpus 8 --mem-per-gpu lots", "--mem-per-gpu lots: not a size", "--mem-per-gpu 60G"),
    ("plan --machine lumi --gpus 8 --mem-per-gpu 70", "a size has a unit: 60G", "--mem-per-gpu 70G"),
    ("plan --machine lumi --gpus 8 -p small", "has no partition small; it has", "--partition small-g"),
    ("plan --machine lumi --gpus 8 --chip A100", "--chip A100: this machine has A40, MI250X", "--chip MI250X"),
    ("plan --machine lumi --gpus 8 -p 'a b'", "--partition a b: give a name", "--partition NAME"),
    ("plan --machine lumi --gpus 8 --why-not small", "has no partition small; it has", "--why-not small-g"),
    ("plan --machine lummi --gpus 8", "echelon knows no machine 'lummi'; did you mean lumi?", "lumi"),
    ("plan --machine lumi --gpus 8 train.py", "'train.py' is not an option", "echelon submit --gpus 8"),
    ("plan --machine lumi --gpu-count 8", "echelon has no option --gpu-count", ""),
    ("plan --machine lumi --gpus 8 --mem-per-gpu 9G --mem 9G", "--mem and --mem-per-gpu", "remove --mem-per-gpu"),
    ("plan --machine lumi --gpus 9 --gpus-per-node 4", "--gpus 9 is not a multiple of --gpus-per-node 4", "--gpus 8"),
    ("plan --machine lumi --gpus 8 --nodes 2 --gpus-per-node 8", "make 16 GPUs, but --gpus asks for 8", "--gpus 16"),
    ("plan --machine lumi --gpus 1 --mem 600G", "gives jobs 480 GiB, but the job asks for 600 GiB", "--mem 480G"),
    ("plan --machine roihu --gpus 1 --mem-per-gpu 300G", "brings 217 GiB of memory, and no more", "--mem-per-gpu 217G"),
    ("plan --machine hipergator --gpus 4 -p hpg-c300", "hpg-c300 on HiPerGator: the number of GPUs", "--nodes 1"),
    ("plan --machine leonardo --gpus 4 -p boost_usr_prod -t 5d", "at most 4-00:00:00 of time", "--time 4-00:00:00"),
    ("plan --machine perlmutter --gpus 4 -p debug --qos regular", "debug is not used with --qos reg", "--qos debug"),
    ("plan --machine frontier --gpus 8 -p batch -t 3h", "at most 02:00:00 of time for 1 node", "--time 02:00:00"),
    ("plan --machine lumi --gpus", "--gpus needs a value", "echelon plan --gpus N"),
    ("plan --machine mahti --gpus 4", "was shut down on 2026-08-31; its successor is roihu", "--machine roihu"),
    ("plan --machine lumi --gpus 16 --global-batch 100", "16 ranks cannot share a global batch", "--global-batch 96"),
    ("plan --machine lumi --gpus 8 --parameters 0", "--parameters 0: not a number of weights", "--parameters 7B"),
    ("plan --machine lumi --gpus 8 --parameters -3", "--parameters -3: not a number", "--parameters 7B"),
    ("plan --machine lumi --gpus 8 --parameters many", "examples: 124M, 7B, 7e9 or 7000000000", "--parameters 7B"),
    ("plan --machine lumi --gpus 8 --parameters 7X", "--parameters 7X: not a number", "--parameters 7B"),
    ("plan --machine lumi --gpus 8 --parameters 1e99", "--parameters 1e99: not a number", "--parameters 7B"),
    ("plan --machine lumi --gpus 8 --parameters 0.1", "--parameters 0.1: not a number", "--parameters 7B"),
    ("plan --machine lumi --gpus 8 --parameters 7B --dtype int8", "the choices are fp32, bf16, fp16", "--dtype fp32"),
    ("plan --machine lumi --gpus 8 --parameters 7B --optimizer x", "the choices are adamw, adam", "--optimizer adamw"),
    ("plan --machine lumi --gpus 8 --dtype bf16", "needs --parameters", "--parameters 7B"),
    ("plan --machine lumi --gpus 8 --parameters 7B --device-memory 80", "a size has a unit", "--device-memory 80G"),
    ("plan --machine hipergator -p hpg-rtx6000 --gpus 1 --parameters 7B", "(RTX Pro 6000) of HiPerGator is not", "80G"),
    (f"submit --machine lumi {ACCOUNT} --gpus 1 train.py", "--time is required", "--time 2h"),
    ("submit --machine lumi -t 1h --gpus 1 train.py", "--account is missing", "--account"),
    ("submit --machine lumi -t 1h --gpus 1 --dry-run train.py", "--account is missing", "--account"),
    (f"{LUMI} --gpus 1", "the command line has no script", "train.py"),
    (f"{LUMI} --gpus 1 trian.py", "trian.py", "train.py"),
    (f"{LUMI} --gpus 1 --layout tasks train.py", "--layout needs --plain", "--plain --layout tasks"),
    (f"{LUMI} --gpus 1 --plain --layout mpi train.py", "--layout mpi: the choices are torchrun, tasks", "--layout"),
    (f"{LUMI} --gpus 1 --plain -- true", "--plain starts Python", "echelon submit --plain"),
    (f"{LUMI} --gpus 1 --plain --env A=1 train.py", "a plain script cannot use --env", "remove it"),
    (f"{LUMI} --gpus 1 --dry-run --json train.py", "--json prints a job's number", "remove --json"),
    (f"{LUMI} --gpus 1 -n 2 train.py", "echelon has no option -n", ""),
    (f"{LUMI} --gpus 1 --after first train.py", "--after first: give the number of a job", "--after 123456"),
    (f"{LUMI} --gpus 1 --container no.sif train.py", "--container no.sif: this image does not exist", "holds no image"),
    (f"{LUMI} --gpus 1 --nnodes 2 train.py", "echelon has no option --nnodes", "--nodes"),
    (f"{LUMI} --gpus 1 --bind loose train.py", "--bind loose: the choices are auto, strict, off", "--bind auto"),
    (f"submit --machine local {ACCOUNT} -t 1h --gpus 1 train.py", "echelon knows no partitions", "echelon run"),
    (f"submit --machine puhti {ACCOUNT} -t 1h --gpus 1 --dry-run train.py", "shut down on", "--plain --dry-run"),
]  # fmt: skip


def echelon(folder: Path, line: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "ECHELON"))}
    environ = {**kept, "XDG_CONFIG_HOME": str(folder / "config"), **environ}
    return warm.run(["-m", "echelon", *shlex.split(line)], cwd=folder, environ=environ)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print(1)\n")
    return tmp_path


@pytest.mark.parametrize(("line", "message", "hint"), WRONG, ids=[row[0] for row in WRONG])
def test_wrong_input(folder: Path, line: str, message: str, hint: str) -> None:
    """One error that names the thing and gives a repair; exit code 2; nothing written."""
    done = echelon(folder, line)
    assert done.returncode == 2, done.stdout
    assert done.stdout == ""
    errors = [row for row in done.stderr.splitlines() if row.startswith("echelon: error:")]
    assert len(errors) == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    shown = done.stderr.partition("\n  hint: ")[2]
    assert shown
    assert hint in shown
    assert [path.name for path in folder.iterdir() if path.name != "config"] == ["train.py"]


def test_plan_as_json(folder: Path) -> None:
    """The plan as JSON holds every number, its reasons, and what spoke against the other partitions."""
    done = echelon(folder, "plan --machine lumi --gpus 16 -t 12h --json")
    fields = json.loads(done.stdout)
    assert (fields["partition"], fields["num_nodes"], fields["ranks_per_node"]) == ("small-g", 2, 8)
    assert (fields["minutes"], fields["billed"]) == (720, 96)
    assert "costs the same" in fields["against"]["standard-g"]
    assert {reason["what"] for reason in fields["reasons"]} >= {"partition", "nodes", "cores per rank", "bill"}


def test_unknown_partition_where_the_table_may_be_incomplete(folder: Path) -> None:
    """A name that is not in the table is no error there: plan and submit warn, and check no limit."""
    asked = "--machine hipergator --gpus 2 --nodes 1 -p hpg-c300"
    warning = "echelon: warning: echelon's table of HiPerGator may be incomplete, and does not have hpg-c300"
    planned = echelon(folder, f"plan {asked} -t 90d")
    assert planned.returncode == 0
    assert warning in planned.stderr
    assert "the table has hpg-turin, hpg-b200, hpg-rtx6000\n" in planned.stderr
    script = echelon(folder, f"submit {asked} -t 1h --dry-run train.py")
    assert warning in script.stderr
    assert "#SBATCH --partition=hpg-c300" in script.stdout
    assert "#SBATCH --gres=gpu:2" in script.stdout
    assert "None" not in planned.stdout + planned.stderr + script.stdout


def test_unknown_partition_in_a_container(folder: Path) -> None:
    """A container starts in a partition without a row too."""
    (folder / "image.sif").write_text("")
    line = "submit --machine frontier -A abc1 --gpus 8 -p new -t 1h --container image.sif --dry-run train.py"
    done = echelon(folder, line)
    assert done.returncode == 0, done.stderr
    assert "takes its nodes for mi250x" in done.stderr


OPTIONS = [
    ("perlmutter --gpus 8", "--qos=regular", "--constraint=gpu"),
    ("perlmutter --gpus 8 --qos debug", "--qos=debug", "--constraint=gpu"),
    ("perlmutter --gpus 8 --qos premium", "--qos=premium", "--constraint=gpu"),
    ("perlmutter --gpus 1", "--qos=shared", "--constraint=gpu"),
    ("leonardo --nodes 2", "--partition=boost_usr_prod"),
    ("leonardo --nodes 100", "--partition=boost_usr_prod", "--qos=boost_qos_bprod"),
    ("leonardo --nodes 100 -p boost_usr_prod", "--partition=boost_usr_prod", "--qos=boost_qos_bprod"),
    ("leonardo --nodes 2 -p boost_usr_prod --qos normal", "--partition=boost_usr_prod", "--qos=normal"),
    ("leonardo --nodes 2 --qos boost_qos_dbg", "--partition=boost_usr_prod", "--qos=boost_qos_dbg"),
    ("frontier --nodes 2 --qos debug", "--partition=batch", "--qos=debug"),
    ("frontier --nodes 200", "--partition=batch"),
    ("hipergator --gpus 8 --qos mygroup", "--partition=hpg-b200", "--qos=mygroup"),
]


@pytest.mark.parametrize("asked", OPTIONS, ids=[row[0] for row in OPTIONS])
def test_partition_qos_and_constraint(folder: Path, asked: tuple[str, ...]) -> None:
    """A job names its partition, or the QOS in its place, whichever of both the user gave."""
    line, *wanted = asked
    done = echelon(folder, f"submit --machine {line} -A abc1 -t 30m --dry-run train.py")
    options = [row.split()[1] for row in done.stdout.splitlines() if row.startswith("#SBATCH")]
    found = [row for row in options if row.startswith(("--partition", "--qos", "--constraint"))]
    assert found == wanted, done.stderr


NOTED = [
    ("--machine lumi --gpus 70", "72 GPUs cost less: 36 instead of 40 GPU-hours, on 9 nodes instead of 10"),
    (
        "--machine roihu --gpus 1 --mem-per-gpu 30G",
        "echelon leaves --mem-per-gpu out: on Roihu each device brings 217 GiB",
    ),
    ("--machine roihu --gpus 1 --cores-per-gpu 100", "100 cores for 1 of 4 devices of a node, but their share is 72"),
    (
        "--machine lumi --gpus 1 --mem 300G",
        "300 GiB for 1 of 8 devices of a node, but their share is 60 GiB (bill: 2.5",
    ),
]


@pytest.mark.parametrize(("line", "note"), NOTED, ids=[line for line, _ in NOTED])
def test_notes(folder: Path, line: str, note: str) -> None:
    """plan and submit note a request that is accepted but hardly meant, with a better request."""
    assert note in echelon(folder, f"plan {line}").stderr
    assert note in echelon(folder, f"submit {line} {ACCOUNT} -t 1h --dry-run train.py").stderr


def test_bill_is_explained(folder: Path) -> None:
    """Why 16 devices in two hours are 16 GPU-hours stands in plan --why and in the script."""
    why = "2 nodes × 8 GPUs × 2 h × 0.5, since 2 GPUs are one MI250X"
    assert why in echelon(folder, "plan --machine lumi --gpus 16 -t 2h --why").stdout
    script = echelon(folder, f"submit --machine lumi {ACCOUNT} -t 2h --gpus 16 --dry-run train.py").stdout
    assert f"# costs at most 16 GPU-hours: {why}" in script


def test_slurms_own_words_are_taken(folder: Path) -> None:
    """Devices and CPUs of a node mean in plan what they mean in sbatch: as many of each."""
    line = "plan --machine lumi --nodes 2 --gpus-per-node 4 --cpus-per-task 6 --mem 200G --json"
    fields = json.loads(echelon(folder, line).stdout)
    assert (fields["num_nodes"], fields["ranks_per_node"], fields["cores_per_rank"]) == (2, 4, 6)
    assert fields["memory_bytes_per_node"] == 200 << 30


def test_single_rank_is_what_an_expert_writes(folder: Path) -> None:
    """A plain script for one GPU has options, the environment and srun python: nobody to meet, nothing to bind."""
    done = echelon(folder, f"{LUMI} --gpus 1 --plain --dry-run train.py --lr 3")
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith("# ")]
    assert lines[-1] == "srun python train.py --lr 3"
    assert len(lines) <= 14, done.stdout
    assert "MASTER_ADDR" not in done.stdout


def test_why_not(folder: Path) -> None:
    """Asked why not, one line answers."""
    done = echelon(folder, "plan --machine lumi --gpus 80 -t 12h --why-not small-g")
    assert done.stdout.startswith("small-g: at most 4 nodes of 8 devices, but the job needs 10 (")
    assert done.returncode == 0


def test_why_not_as_data(folder: Path) -> None:
    """The same answer for programs."""
    words = "plan --machine lumi --gpus 80 -t 12h --why-not small-g"
    answer = json.loads(echelon(folder, words + " --json").stdout)
    assert answer["partition"] == "small-g"
    assert echelon(folder, words).stdout == f"small-g: {answer['why_not']}\n"


def test_help_ends_in_an_example(folder: Path) -> None:
    """Both helps end in something that can be typed."""
    for command in ("plan", "submit"):
        done = echelon(folder, f"{command} --help")
        assert done.stdout.splitlines()[-1].startswith(f"  echelon {command} --")


def test_retired_machine_can_be_read(folder: Path) -> None:
    """The script for a machine that was shut down is still there to be read."""
    done = echelon(folder, f"submit --machine puhti {ACCOUNT} -t 1h --gpus 4 --plain --dry-run train.py")
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --gres=gpu:v100:4" in done.stdout


def test_account_of_the_shell_is_taken(folder: Path) -> None:
    """An account in the environment, as sites teach it, counts."""
    done = echelon(folder, "submit --machine lumi -t 1h --gpus 1 --dry-run train.py", SBATCH_ACCOUNT="project_7")
    assert "#SBATCH --account=project_7" in done.stdout


def test_closed_pipe_is_no_traceback(folder: Path) -> None:
    """A reader that stops early, such as head, ends the command quietly."""
    command = f"{shlex.quote(sys.executable)} -m echelon machines lumi | head -n 1"
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    assert done.stderr == ""


def test_unknown_machine_names_the_command_that_learns(folder: Path) -> None:
    """Where nothing tells the machine, the known ones and the way to learn it are named."""
    done = echelon(folder, "plan --gpus 1", PATH="/nonexistent")
    assert done.returncode == 2
    assert "the known machines are " in done.stderr
    assert "echelon machines learn" in done.stderr


def test_slow_slurm_is_not_waited_for(folder: Path) -> None:
    """A Slurm that does not answer costs a few seconds, and is named."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "scontrol").write_text("#!/bin/sh\nexec sleep 60\n")
    (programs / "scontrol").chmod(0o755)
    done = echelon(folder, "plan --gpus 1", PATH=f"{programs}:/usr/bin:/bin")
    assert done.returncode == 2
    assert "scontrol did not answer within" in done.stderr
