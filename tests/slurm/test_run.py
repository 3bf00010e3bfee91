"""`echelon run` inside allocations of a real Slurm: places, environments, options, signals, bad input."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import Cluster
from tests.runs import ECHELON, Run
from tests.tiers import in_all, some

HERE = Path(__file__).parent
REPORT = str(HERE / "report.py")
SIGNALLED = str(HERE / "signalled.py")

pytestmark = pytest.mark.slurm


def launch(slurm: Cluster, folder: Path, options: str, *command: str) -> subprocess.CompletedProcess[str]:
    return slurm.run("salloc", "--quiet", *options.split(), *command, check=False, cwd=folder, timeout=120)


def run(slurm: Cluster, folder: Path, options: str, *arguments: str) -> dict[int, dict[str, Any]]:
    done = launch(slurm, folder, options, *ECHELON, "run", *arguments)
    assert done.returncode == 0, done.stderr
    return reports(folder)


def reports(folder: Path) -> dict[int, dict[str, Any]]:
    return {int(path.stem): json.loads(path.read_text()) for path in folder.glob("*.json")}


def places(found: dict[int, dict[str, Any]]) -> list[tuple[str, ...]]:
    names = ("SLURMD_NODENAME", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
    return [tuple(found[rank]["environ"][name] for name in names) for rank in sorted(found)]


def refused(slurm: Cluster, folder: Path, options: str, *arguments: str) -> str:
    done = launch(slurm, folder, options, *ECHELON, "run", *arguments)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert not reports(folder)
    return done.stderr


TORCHRUN_ONLY_HERE = {
    "MASTER_ADDR", "MASTER_PORT",  # addresses
    "TORCHELASTIC_ERROR_FILE",  # a path of the run's own
    "TORCHELASTIC_USE_AGENT_STORE",  # rank 0 serves its own store: torchrun's outlives an attempt
}  # fmt: skip


@pytest.mark.tier("all")
def test_32_ranks_have_what_torchrun_gives(slurm: Cluster, tmp_path: Path) -> None:
    """Keys and values equal torchrun's on 4 nodes x 8, and rank 0 is on MASTER_ADDR's node."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    found = run(slurm, ours, "-N4 --ntasks-per-node=1", "-n", "8", REPORT, str(ours))
    torchrun = (
        f"{sys.executable} -m torch.distributed.run --nnodes=4 --nproc-per-node=8 --node-rank=$SLURM_NODEID "
        f"--master-addr=nid005000 --master-port=23567 {REPORT} {theirs}"
    )
    done = launch(slurm, theirs, "-N4 --ntasks-per-node=1", "srun", "bash", "-c", torchrun)
    assert done.returncode == 0, done.stderr
    expected = reports(theirs)
    assert sorted(found) == sorted(expected) == list(range(32))
    for rank in range(32):
        names = {
            name
            for name in expected[rank]["environ"]
            if re.match("(TORCH|GROUP|ROLE|LOCAL|RANK|WORLD|MASTER|OMP)", name)
        }
        for name in names - TORCHRUN_ONLY_HERE:
            assert found[rank]["environ"][name] == expected[rank]["environ"][name], (rank, name)
        assert names <= found[rank]["environ"].keys()
    assert {report["environ"]["MASTER_ADDR"] for report in found.values()} == {"nid005000"}
    assert found[0]["environ"]["SLURMD_NODENAME"] == "nid005000"
    assert found[0]["master"] == slurm.addresses["nid005000"]


SCALED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
inputs = torch.randn(8, 4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for samples, targets in DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4):
    loss = nn.functional.mse_loss(model(samples), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
print(f"loss {loss.item():.6f}")
"""


def test_ranks_of_two_nodes_meet_at_the_store(slurm: Cluster, tmp_path: Path) -> None:
    """A scaled script's ranks reach the store of rank 0's agent from the other node, and write a file together."""
    (tmp_path / "train.py").write_text(SCALED)
    done = launch(slurm, tmp_path, "--nodes=2 --ntasks-per-node=1", *ECHELON, "run", "-n", "1", "train.py")
    assert done.returncode == 0, done.stderr
    assert "scaled over 2 ranks" in done.stderr
    assert "loss " in done.stdout
    assert (tmp_path / "model.pt").exists()


def test_every_framework_finds_its_rank(slurm: Cluster, tmp_path: Path) -> None:
    """TF_CONFIG, Horovod's, DeepSpeed's and Slurm's own names all tell the same place."""
    found = run(slurm, tmp_path, "-N2 --ntasks-per-node=8", "-n", "3", REPORT, str(tmp_path))
    for rank, report in found.items():
        environ = report["environ"]
        assert json.loads(environ["TF_CONFIG"])["task"] == {"type": "worker", "index": rank}
        assert len(set(json.loads(environ["TF_CONFIG"])["cluster"]["worker"])) == 6
        assert environ["HOROVOD_RANK"] == environ["SLURM_PROCID"] == str(rank)
        assert environ["HOROVOD_LOCAL_RANK"] == environ["SLURM_LOCALID"] == str(rank % 3)
        assert environ["CROSS_RANK"] == environ["SLURM_NODEID"] == str(rank // 3)
        assert environ["SLURM_NTASKS"] == "6"


@pytest.mark.parametrize(
    "options",
    some(["-N2 --ntasks-per-node=8 --gpus-per-node=8", "-N2 -n16 --gpus-per-task=1", "-N2 -n2 --gpus=16",
          "-N2 --gres=gpu:8", "-N2 --partition=standard-g"], 3),
)  # fmt: skip
def test_default_is_a_rank_per_device(slurm: Cluster, tmp_path: Path, options: str) -> None:
    """However the devices were asked for, each node gets a rank for each of its own, and all see all of them."""
    found = run(slurm, tmp_path, options, REPORT, str(tmp_path))
    assert len(found) == 16
    assert {report["environ"]["ROCR_VISIBLE_DEVICES"] for report in found.values()} == {"0,1,2,3,4,5,6,7"}


def test_visible_own(slurm: Cluster, tmp_path: Path) -> None:
    """Each rank sees its own device alone, and LOCAL_RANK is that device's index."""
    found = run(slurm, tmp_path, "-N1 --gpus-per-node=4", "--visible", "own", REPORT, str(tmp_path))
    assert [found[rank]["environ"]["ROCR_VISIBLE_DEVICES"] for rank in range(4)] == ["0", "1", "2", "3"]
    assert {report["environ"]["LOCAL_RANK"] for report in found.values()} == {"0"}


@pytest.mark.parametrize("launch_option", [in_all("warm"), in_all("exec"), "tasks"])
def test_places(slurm: Cluster, tmp_path: Path, launch_option: str) -> None:
    """Ranks are numbered node by node, whatever starts them."""
    found = run(slurm, tmp_path, "-N3 --ntasks-per-node=2", "--launch", launch_option, "-n", "2", REPORT, str(tmp_path))
    nodes = [f"nid00500{n}" for n in range(3)]
    assert places(found) == [(nodes[n // 2], str(n % 2), str(n // 2), "2", "6") for n in range(6)]


def test_some_of_the_nodes(slurm: Cluster, tmp_path: Path) -> None:
    """--nnodes takes the first nodes of the allocation."""
    found = run(slurm, tmp_path, "-N4", "--nnodes", "2", "-n", "1", REPORT, str(tmp_path))
    assert [place[0] for place in places(found)] == ["nid005000", "nid005001"]


def test_node_list_with_a_gap(slurm: Cluster, tmp_path: Path) -> None:
    """A list such as nid[005000,005002-005003] is read as Slurm means it."""
    found = run(slurm, tmp_path, "--nodelist=nid005003,nid005000,nid005002", "-n", "1", REPORT, str(tmp_path))
    assert [place[0] for place in places(found)] == ["nid005000", "nid005002", "nid005003"]


def test_two_runs_at_once(slurm: Cluster, tmp_path: Path) -> None:
    """Several steps share an allocation: two runs go on side by side, on ports of their own."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    echelon = " ".join(ECHELON)
    script = f"cd {one} && {echelon} run -n 2 {REPORT} {one} & cd {two} && {echelon} run -n 2 {REPORT} {two} & wait"
    done = launch(slurm, tmp_path, "-N2", "bash", "-c", script)
    assert done.returncode == 0, done.stderr
    assert len(reports(one)) == len(reports(two)) == 4
    assert reports(one)[0]["environ"]["MASTER_PORT"] != reports(two)[0]["environ"]["MASTER_PORT"]


@pytest.mark.tier("all")
def test_array_job(slurm: Cluster, tmp_path: Path) -> None:
    """Each element of an array job is a run of its own."""
    batch = (
        f"#!/bin/bash\nd={tmp_path}/$SLURM_ARRAY_TASK_ID; mkdir $d; cd $d\n{' '.join(ECHELON)} run -n 2 {REPORT} $d\n"
    )
    slurm.sbatch(batch, "--array=0-1", "--nodes=2", "--wait", cwd=tmp_path)
    slurm.wait(lambda: all(len(reports(tmp_path / n)) == 4 for n in "01"), "both elements to report")


def test_each_node_started_by_hand(slurm: Cluster, tmp_path: Path) -> None:
    """`srun torchrun …` with the word exchanged: each node's own process meets the others."""
    by_hand = ("--nproc_per_node=2", "--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=nid005000:29567")
    command = ("srun", "--ntasks-per-node=1", *ECHELON, "run", *by_hand, REPORT, str(tmp_path))
    done = launch(slurm, tmp_path, "-N2", *command)
    assert done.returncode == 0, done.stderr
    assert places(reports(tmp_path)) == [
        (f"nid00500{n // 2}", str(n % 2), str(n // 2), "2", "4") for n in range(4)
    ]  # fmt: skip


def test_exec_in_every_task(slurm: Cluster, tmp_path: Path) -> None:
    """The guides' start script in one word gives the same places."""
    done = launch(
        slurm, tmp_path, "-N2 --ntasks-per-node=2", "srun", *ECHELON, "exec", sys.executable, REPORT, str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    assert [place[1:] for place in places(reports(tmp_path))] == [(str(n % 2), str(n // 2), "2", "4") for n in range(4)]


def test_arguments_arrive_byte_for_byte(slurm: Cluster, tmp_path: Path) -> None:
    """Neither Slurm nor any shell in between changes an argument."""
    odd = [b"two words", b"'\"", b"$(id)", b"line\nline", b"\xff\xfe", b"", b"*", b"x" * 100_000, b"--", b"-n"]
    command = [
        os.fsencode(word) for word in ("salloc", "--quiet", "-N2", *ECHELON, "run", "-n", "1", REPORT, str(tmp_path))
    ]
    done = subprocess.run(
        [*command, *odd], env=slurm.environ, cwd=tmp_path, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    for report in reports(tmp_path).values():
        assert [bytes.fromhex(word) for word in report["argv"]][1:] == odd


@pytest.mark.parametrize("launch_option", [in_all("warm"), "exec"])
def test_signals_from_slurm_reach_every_rank_once(slurm: Cluster, tmp_path: Path, launch_option: str) -> None:
    """scancel --signal reaches ranks, the agents survive it, and ending well on SIGTERM is ending well."""
    going = Run(tmp_path, "--launch", launch_option, "-n", "2", SIGNALLED, str(tmp_path), environ=slurm.environ,
                before=("salloc", "--quiet", "-N2"))  # fmt: skip
    going.until_started(4)
    going.until(lambda: len(list(tmp_path.glob("*.signals"))) == 4, "all ranks to be ready")
    for name, seen in (("USR1", "SIGUSR1"), ("USR2", "SIGUSR1\nSIGUSR2")):
        slurm.run("scancel", f"--signal={name}", f"{going.plan()['job_id']}.0")
        going.until(
            lambda seen=seen: all(p.read_text() == seen for p in tmp_path.glob("*.signals")), f"{name} at all ranks"
        )
        time.sleep(0.2)
    assert {path.read_text() for path in tmp_path.glob("*.signals")} == {"SIGUSR1\nSIGUSR2"}
    os.kill(going.supervisor, 15)
    assert going.finish()[0] == 0
    assert {path.read_text() for path in tmp_path.glob("*.signals")} == {"SIGUSR1\nSIGUSR2\nSIGTERM"}
    assert going.left_behind(seconds=5) == []


SAVES = """
import os, signal, sys, time
path = os.path.join(sys.argv[1], os.environ["RANK"])
def save(*_):
    with open(path, "a") as file:
        file.write("saving ")
    time.sleep(2.5)
    with open(path, "a") as file:
        file.write("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open(path, "w").close()
time.sleep(100)
"""


@pytest.mark.parametrize("begin", [in_all("exec "), ""])
def test_cancelled_job_has_time_to_save(slurm: Cluster, tmp_path: Path, begin: str) -> None:
    """Slurm's SIGTERM, which reaches supervisor and agents alike, is one signal: ranks get it once, and their time."""
    (tmp_path / "saves.py").write_text(SAVES)
    (tmp_path / "saved").mkdir()
    line = f"{begin}{' '.join(ECHELON)} run -n 2 {tmp_path}/saves.py {tmp_path}/saved"
    job = slurm.sbatch(f"#!/bin/bash\n{line}\n", "--nodes=2", cwd=tmp_path)
    slurm.wait(lambda: len(list((tmp_path / "saved").iterdir())) == 4, "all ranks to be ready", timeout=60)
    slurm.run("scancel", str(job))
    slurm.wait_job(job)
    assert [path.read_text() for path in (tmp_path / "saved").iterdir()] == ["saving saved"] * 4


def test_one_task_of_a_step_stays_on_its_node(slurm: Cluster, tmp_path: Path) -> None:
    """A job that is divided by `srun -n1` has a run in each part, with the part's own devices."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    each = f"srun -N1 -n1 --gpus-per-node=2 --exact {' '.join(ECHELON)} run {REPORT} {tmp_path}"
    done = launch(slurm, tmp_path, "-N2 -n2 --gpus-per-node=2", "bash", "-c", f"{each}/one & {each}/two & wait")
    assert done.returncode == 0, done.stderr
    parts = [places(reports(tmp_path / name)) for name in ("one", "two")]
    assert [[place[1:] for place in part] for part in parts] == [[("0", "0", "2", "2"), ("1", "0", "2", "2")]] * 2
    assert {place[0] for part in parts for place in part} == {"nid005000", "nid005001"}
    said = launch(slurm, tmp_path, "-N2", "srun", "-N1", "-n1", *ECHELON, "run", "--nnodes", "2", REPORT, str(tmp_path))
    assert "you asked for 2 nodes, but this Slurm step has one task, on nid00500" in said.stderr


@pytest.mark.tier("all")
def test_heterogeneous_job(slurm: Cluster, tmp_path: Path) -> None:
    """As a whole it is refused, also by salloc's shell, which has no SLURM_JOB_ID; the hint's line works."""
    said = refused(slurm, tmp_path, "-N1 --gpus-per-node=2 : -N2 --gpus-per-node=2", REPORT, str(tmp_path))
    assert "this is a heterogeneous job of 2 components" in said
    line = "srun --het-group=1 --ntasks-per-node=1"
    assert line.replace("=1 -", "=0 -") in said
    done = launch(slurm, tmp_path, "-N1 --gpus-per-node=2 : -N2 --gpus-per-node=2", *line.split(), *ECHELON, "run",
                  REPORT, str(tmp_path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(reports(tmp_path)) == 4


@pytest.mark.tier("all")
def test_signal_before_the_time_limit(slurm: Cluster, tmp_path: Path) -> None:
    """sbatch --signal reaches the ranks of a batch job's run; Slurm sends it as much as 30 s earlier than asked for."""
    batch = f"#!/bin/bash\n{' '.join(ECHELON)} run -n 1 {SIGNALLED} {tmp_path}\n"
    job = slurm.sbatch(batch, "--nodes=2", "--time=2", "--signal=USR1@70", cwd=tmp_path)
    heard = ["SIGUSR1"] * 2
    slurm.wait(lambda: [p.read_text() for p in tmp_path.glob("*.signals")] == heard, "SIGUSR1 at both", timeout=120)
    slurm.run("scancel", str(job))
    slurm.wait_job(job)


def test_failing_rank_on_another_node(slurm: Cluster, tmp_path: Path) -> None:
    """The node of the rank that failed is named, and its traceback is shown once."""
    script = tmp_path / "fails.py"
    script.write_text(
        "import os, time\nif os.environ['RANK'] == '3':\n    raise ValueError('of mine')\ntime.sleep(60)\n"
    )
    done = launch(slurm, tmp_path, "-N2", *ECHELON, "run", "-n", "2", str(script))
    assert done.returncode == 1
    assert "rank 3 on nid005001 (local rank 1) failed first: error in the script" in done.stderr
    assert done.stderr.count("ValueError: of mine") == 1


def test_more_nodes_than_allocated(slurm: Cluster, tmp_path: Path) -> None:
    """The two numbers and the nodes that are there are shown."""
    said = refused(slurm, tmp_path, "-N2", "--nnodes", "3", REPORT, str(tmp_path))
    found = re.search(r"you asked for 3 nodes, but job \d+ has 2: (\w+), (\w+)\n", said)
    assert found, said
    assert len({found[1], found[2]} & set(slurm.nodes)) == 2  # whichever are free


def test_more_ranks_than_devices(slurm: Cluster, tmp_path: Path) -> None:
    """Nine ranks on eight devices are refused unless sharing is meant."""
    said = refused(slurm, tmp_path, "-N1 --gpus-per-node=8", "-n", "9", REPORT, str(tmp_path))
    assert "you asked for 9 ranks per node, but a node has 8 devices" in said
    assert len(run(slurm, tmp_path, "-N1 --gpus-per-node=8", "-n", "9", "--share-devices", REPORT, str(tmp_path))) == 9


def test_uneven_devices(slurm: Cluster, tmp_path: Path) -> None:
    """A job whose nodes have different numbers of devices is refused, for no step would see them all."""
    said = refused(slurm, tmp_path, "-N2 --ntasks=3 --gpus=10", REPORT, str(tmp_path))
    assert re.search(r"different numbers of devices on its nodes \(nid00500\d: \d, nid00500\d: \d\)", said), said


def test_several_tasks_on_one_node_each_starting_a_run(slurm: Cluster, tmp_path: Path) -> None:
    """`srun -n 4 echelon run` would start everything four times: it is refused with the way out."""
    done = launch(slurm, tmp_path, "-N1 -n4", "srun", *ECHELON, "run", "-n", "1", REPORT, str(tmp_path))
    assert "this is one of 4 Slurm tasks on 1 node, and each of them would start all ranks of its node" in done.stderr
    assert not reports(tmp_path)


def test_python_missing_on_the_nodes(slurm: Cluster, tmp_path: Path) -> None:
    """The node and the interpreter that is not there are named."""
    link = tmp_path / "python-of-mine"
    link.symlink_to(sys.executable)
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "srun"
    wrapper.write_text(f'#!/bin/sh\nrm -f {link}\nPATH=${{PATH#*:}}\nexec srun "$@"\n')
    wrapper.chmod(0o755)
    environ = {
        **slurm.environ,
        "PATH": f"{tmp_path / 'bin'}:{slurm.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path[1:]),
    }
    done = slurm.run("salloc", "--quiet", "-N2", str(link), "-m", "echelon", "run", "-n", "1", REPORT, str(tmp_path),
                     check=False, env=environ, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert re.search(rf"there is no {link} on nid\d+, nid\d+\n  hint: install Python where every node", done.stderr)
    assert "Traceback" not in done.stderr
