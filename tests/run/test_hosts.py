"""`echelon run --hosts`: ssh starts one agent on each host, and what becomes of it."""

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from echelon.errors import EchelonError, UsageError
from echelon.launch.prepare import prepare
from echelon.scheduler import hosts
from echelon.scheduler.protocol import End
from echelon.spec import Command, Job

from . import sshd
from .shell import Shell, read_variables, wait_until

BOTH = ",".join(sshd.ADDRESSES[:2])
HIDING = sshd.ADDRESSES[2]
"""A host without the folder of the test."""
NOTES = """
import os, sys, time
rank, attempt = os.environ["RANK"], os.environ["ECHELON_ATTEMPT"]
with open(f"rank-{rank}", "wb") as file:
    file.write(b"\\0".join(name + b"=" + value for name, value in os.environb.items()))
"""
WAITS = f"{NOTES}\nif attempt == '0':\n    time.sleep(60)\n"


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run one sshd for all tests of this file, and offer its client."""
    with sshd.serving(tmp_path_factory.mktemp("sshd"), hiding=HIDING) as command:
        yield command


@pytest.fixture
def there(shell: Shell, ssh: str) -> Shell:
    """Give a test a shell whose ssh reaches that sshd."""
    shell.environ["ECHELON_SSH"] = ssh
    return shell


def ranks_have_begun(shell: Shell, count: int = 2) -> None:
    wait_until(lambda: len(shell.files("rank-*")) == count, seconds=30.0)


def processes_with(shell: Shell, program: str, *words: str) -> list[int]:
    """Return the processes of a program whose command line has these words."""
    processes = [line.split(" ", 2) for line in shell.processes()]
    return [int(pid) for pid, name, rest in processes if name == program and all(word in rest for word in words)]


def test_ranks_on_two_hosts_have_the_shells_folder_and_environment(there: Shell) -> None:
    """Ranks are numbered in the order of the hosts; an odd value arrives, what belongs to a session does not."""
    there.script(NOTES)
    odd = 'it\'s "odd"\n$HOME `x` é'
    done = there.run("--hosts", BOTH, "-n", "2", "train.py", ODD=odd, DISPLAY=":7")
    assert done.exit_code == 0, done.said
    ranks = [read_variables(there.folder / f"rank-{rank}") for rank in range(4)]
    assert [(each["RANK"], each["LOCAL_RANK"], each["GROUP_RANK"]) for each in ranks] == [
        ("0", "0", "0"), ("1", "1", "0"), ("2", "0", "1"), ("3", "1", "1")
    ]  # fmt: skip
    assert {(each["WORLD_SIZE"], each["MASTER_ADDR"], each["ODD"]) for each in ranks} == {("4", "127.0.0.2", odd)}
    assert not any("DISPLAY" in each for each in ranks)
    assert "4 ranks on 2 nodes" in done.said
    assert there.files(f"echelon-runs/*/{hosts.ENVIRONMENT}") == []


def test_numbers_of_ranks_in_the_list(there: Shell) -> None:
    """a:2,b:2 is -n 2."""
    there.script(NOTES)
    listed = ",".join(f"{address}:2" for address in sshd.ADDRESSES[:2])
    assert there.run("--hosts", listed, "train.py").exit_code == 0
    assert len(there.files("rank-*")) == 4


def test_failure_of_a_rank_names_its_host(there: Shell) -> None:
    """The first failure decides, as anywhere; its node is the name in the list."""
    there.script(f"{NOTES}\nif rank == '1':\n    sys.exit(7)\ntime.sleep(60)\n")
    done = there.run("--hosts", BOTH, "-n", "1", "train.py")
    assert done.exit_code == 7
    assert "127.0.0.3" in done.said


def test_ctrl_c_ends_all_ranks_on_all_hosts(there: Shell) -> None:
    """Ranks get SIGINT, and nothing is left."""
    there.script(WAITS)
    with there.start("--hosts", BOTH, "-n", "2", "train.py") as process:
        ranks_have_begun(there, 4)
        process.send_signal(signal.SIGINT)
        assert process.wait(60.0) == 130
    wait_until(lambda: not there.processes(), seconds=5.0)


@pytest.mark.parametrize(("words", "why"), [
    (("ssh", "127.0.0.3", "sh"), "the ssh to 127.0.0.3 was killed by SIGKILL"),
    ((sys.executable, "node.pyz agent", " 1 "), "the (agent on 127.0.0.3 is gone|ssh to 127.0.0.3 ended)"),
])  # fmt: skip
def test_lost_host(there: Shell, words: tuple[str, ...], why: str) -> None:
    """An ended ssh is an ended agent, and the first of the two to be seen is told.

    The other ranks end too, and with --max-restarts all begin again.
    """
    there.script(WAITS)
    with there.start("--hosts", BOTH, "-n", "1", "train.py") as process:
        ranks_have_begun(there)
        os.kill(min(processes_with(there, *words)), signal.SIGKILL)
        _, stderr = process.communicate(timeout=60.0)
    assert process.returncode == 1
    assert re.search(f"lost agent: {why}", stderr.decode())
    assert "hint: leave that host out of --hosts" in stderr.decode()
    for path in there.files("rank-*"):
        path.unlink()
    with there.start("--hosts", BOTH, "-n", "1", "--max-restarts", "1", "train.py") as process:
        ranks_have_begun(there)
        os.kill(min(processes_with(there, *words)), signal.SIGKILL)
        _, stderr = process.communicate(timeout=60.0)
    assert process.returncode == 0, stderr.decode()
    assert "starting the agent on 127.0.0.3 again" in stderr.decode()


def test_killed_supervisor(there: Shell) -> None:
    """Agents on all hosts end their ranks when nobody leads them any more."""
    there.script(WAITS)
    with there.start("--hosts", BOTH, "-n", "1", "train.py") as process:
        ranks_have_begun(there)
        for pid in processes_with(there, sys.executable, "-m echelon run"):
            os.kill(pid, signal.SIGKILL)
        process.wait(5.0)
    wait_until(lambda: not there.processes(), seconds=10.0)


def refused(done_said: str) -> tuple[str, str]:
    """Return the error and its hint; there are no other lines."""
    first, second = done_said.splitlines()
    return first.removeprefix("echelon: error: "), second.removeprefix("  hint: ")


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ("--hosts=", "--hosts '': give names", "--hosts node1,node2"),
        ("--hosts=a,,b", "--hosts a,,b: give names", "--hosts node1,node2"),
        ("--hosts=me@a,b", "another user or port stands in ~/.ssh/config", "--hosts node1,node2"),
        ("--hosts=-oProxyCommand=x", "give names of hosts", "--hosts node1,node2"),
        ("--hosts=a,b,a", "--hosts a,b,a: a is named twice", "--hosts a,b "),
        ("--hosts=a:2,b:3", "different numbers of ranks", "--hosts a,b -n 2"),
        ("--hosts=a:2,b:2 -n 3", "-n 3 disagree", "remove -n 3"),
        ("--hosts=a,b --nnodes 2", "--nnodes does not go with --hosts", "remove --nnodes"),
        ("--hosts=a,b --spares 1", "--spares does not go with --hosts", "remove --spares"),
        ("--hosts=a,b --launch tasks", "needs a Slurm allocation", "--launch warm"),
        ("--hosts=a,b --debug 0", "the ranks run elsewhere", "without --debug"),
        ("--hosts=a,b --check full", "not for --hosts", "--check off"),
        ("--hosts=localhost,b", "the other hosts would look for localhost on themselves", "--hosts "),
    ],
)  # fmt: skip
def test_wrong_words_are_refused(shell: Shell, options: str, message: str, hint: str) -> None:
    """One clear error, and exit code 2."""
    shell.script("")
    done = shell.fork(*options.split(), "train.py")
    said, repair = refused(done.said)
    assert (done.exit_code, message in said, hint in repair) == (2, True, True), done.said


def test_hosts_inside_of_an_allocation_are_refused(shell: Shell) -> None:
    """Slurm has given the nodes already."""
    shell.script("")
    job = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    done = shell.fork("--hosts", "a,b", "train.py", **job)
    said, repair = refused(done.said)
    assert (done.exit_code, said) == (2, "--hosts a,b: this is job 42 of Slurm, which has the nodes n1, n2")
    assert repair.startswith("remove --hosts")


@pytest.mark.parametrize(
    ("host", "more", "exit_code", "message", "hint"),
    [
        ("no-such-host.invalid", "", 2, "Could not resolve hostname", "getent hosts no-such-host.invalid"),
        ("127.0.0.9", "", 1, "Connection refused", "BatchMode=yes 127.0.0.9 true"),
        ("127.0.0.3", " -o IdentityAgent=none -F {other}", 1, "Permission denied", "ssh-copy-id 127.0.0.3"),
        ("127.0.0.3", " -o UserKnownHostsFile=/dev/null", 1, "Host key verification failed", "ssh 127.0.0.3 true"),
    ],
)  # fmt: skip
def test_host_that_ssh_does_not_reach(
    there: Shell, host: str, more: str, exit_code: int, message: str, hint: str
) -> None:
    """The error has the host, ssh's last words and the repair; no rank starts anywhere."""
    there.script(NOTES)
    client = Path(there.environ["ECHELON_SSH"].split()[-1])
    other = there.folder / "client"
    other.write_text(client.read_text().replace("/user\n", "/nobody\n"))
    command = f"ssh{more.format(other=other)}" if "{other}" in more else f"{there.environ['ECHELON_SSH']}{more}"
    done = there.run("--hosts", host, "train.py", ECHELON_SSH=command)
    said, repair = refused(done.said)
    assert (done.exit_code, f"ssh does not reach {host}: " in said, message in said) == (exit_code, True, True), done
    assert hint in repair
    assert there.files("rank-*") == []


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="no bubblewrap: tools/install-slurm installs it")
def test_host_that_does_not_share_the_files(there: Shell, tmp_path_factory: pytest.TempPathFactory) -> None:
    """It is named with the folder that it does not see."""
    there.script(NOTES)
    done = there.run("--hosts", f"127.0.0.2,{HIDING}", "train.py", HIDDEN=str(there.folder))
    said, repair = refused(done.said)
    assert (done.exit_code, said.partition(" /")[0]) == (2, f"{HIDING} does not see the run directory")
    assert repair == "echelon run --run-dir DIRECTORY-ON-A-SHARED-DISK …"
    shared = tmp_path_factory.mktemp("shared") / "run"
    done = there.run("--hosts", f"127.0.0.2,{HIDING}", "--run-dir", shared, "train.py", HIDDEN=str(there.folder.parent))
    assert refused(done.said)[0] == f"{HIDING} has no folder {there.folder}"


@pytest.mark.parametrize(
    ("exit_code", "said", "message", "hint"),
    [
        (hosts.NO_PROGRAM, "", "there is no /opt/python on b", "install Python where every node sees it"),
        (1, "echelon: agent on b: 10.0.0.1:4242: timed out", "the ssh to b ended with exit code 1", "a firewall"),
        (255, "", "ssh does not reach b: it said nothing", "ssh -F x -o BatchMode=yes b true"),
    ],
)  # fmt: skip
def test_end_of_ssh(exit_code: int, said: str, message: str, hint: str) -> None:
    """Each end before an agent has joined has its own repair."""
    command = Command(kind="script", target=__file__)
    planned = replace(prepare(Job(command=command, hosts=("a", "b"))), python="/opt/python")
    start = hosts.Hosts().starts(planned, ("agent",), {hosts.PROGRAM: "ssh -F x"})[1]
    end = End(start=start, exit_code=exit_code, how=f"{start.name} ended with exit code {exit_code}", said=said)
    error: EchelonError = hosts.Hosts().cannot_start(planned, end)
    assert message in error.message
    assert hint in error.hint
    assert isinstance(error, UsageError) == (exit_code == hosts.NO_PROGRAM)


def test_dry_run_shows_each_ssh(shell: Shell) -> None:
    """The plan has one command for each host, and nothing starts."""
    shell.script("")
    done = shell.fork("--hosts", "a,b", "-n", "2", "--dry-run", "train.py", ECHELON_SSH="ssh -F x")
    agents = [line for line in done.stdout.decode().splitlines() if line.startswith("agents")]
    assert [" -T a sh -c " in agents[0], " -T b sh -c " in agents[1], len(agents)] == [True, True, 2]
    plan = json.loads(shell.fork("--hosts", "a,b", "--dry-run", "--json", "train.py").stdout)
    assert (plan["where"], plan["nodes"], plan["num_nodes"]) == ("ssh", ["a", "b"], 2)


TRAINS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for inputs, targets in DataLoader(data, batch_size=16):
    loss = ((model(inputs) - targets) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.tier("all")
def test_scaled_training_on_two_hosts(there: Shell) -> None:
    """The first step equals that of one device, as on the nodes of an allocation."""
    there.script(TRAINS)
    done = there.run("--hosts", BOTH, "-n", "1", "train.py", seconds=120.0)
    assert done.exit_code == 0, done.said
    assert "first step: equals that of one device" in done.said
