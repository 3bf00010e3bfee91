"""The private Slurm cluster of the tests keeps its promises."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster import Cluster, ClusterError, fixture, hosts
from tests.cluster.fixture import require_tools
from tests.cluster.processes import CLUSTER_MARK, descendants, environ, pids

pytestmark = pytest.mark.slurm

REPOSITORY = Path(__file__).parents[1]
SHOW = 'echo "$SLURM_PROCID $SLURMD_NODENAME ${ROCR_VISIBLE_DEVICES-none}"'


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    """Share one cluster between the tests of this file."""
    require_tools()
    with Cluster(message_timeout_seconds=2) as running:
        yield running


@pytest.fixture
def cluster(shared: Cluster) -> Cluster:
    """Offer an empty cluster with all nodes idle."""
    shared.reset()
    return shared


def shown(output: str) -> list[tuple[int, str, str]]:
    """Read the lines that SHOW prints, by rank."""
    fields = (line.split() for line in output.splitlines())
    return sorted((int(rank), node, devices) for rank, node, devices in fields)


def test_started_cluster_has_only_idle_nodes(cluster: Cluster) -> None:
    """Every node is idle when start returns, with the cores, memory and devices of LUMI-G."""
    assert cluster.nodes == ["nid005000", "nid005001", "nid005002", "nid005003"]
    assert {cluster.state(node) for node in cluster.nodes} == {"idle"}
    node = cluster.run("scontrol", "show", "node", "--oneliner", "nid005003").stdout
    assert "CPUTot=64" in node
    assert "CPUEfctv=56" in node
    assert "RealMemory=491520" in node
    assert "Gres=gpu:mi250:8" in node


def test_two_nodes_of_eight_tasks_see_ranks_and_devices(cluster: Cluster) -> None:
    """A step of 16 tasks numbers them 0 to 15, eight a node, and names the devices as on LUMI."""
    ran = cluster.run("srun", "-N2", "--ntasks-per-node=8", "--gpus-per-node=8", "bash", "-c", SHOW)
    every = "0,1,2,3,4,5,6,7"
    assert shown(ran.stdout) == [(rank, f"nid00500{rank // 8}", every) for rank in range(16)]


def test_task_without_devices_sees_none(cluster: Cluster) -> None:
    """A task that asked for no device has no ROCR_VISIBLE_DEVICES."""
    assert shown(cluster.run("srun", "bash", "-c", SHOW).stdout) == [(0, "nid005000", "none")]


def test_node_names_resolve_on_nodes_to_different_addresses(cluster: Cluster) -> None:
    """A task finds the address of every node by its name."""
    program = "import socket, sys; print(*[socket.getaddrinfo(n, 1)[0][4][0] for n in sys.argv[1:]])"
    ran = cluster.run("srun", "-n1", sys.executable, "-c", program, *cluster.nodes)
    assert ran.stdout.split() == ["127.0.5.1", "127.0.5.2", "127.0.5.3", "127.0.5.4"]
    assert list(cluster.addresses.values()) == ran.stdout.split()


def test_salloc_runs_a_command_inside_the_allocation(cluster: Cluster) -> None:
    """The command of salloc knows its job, and its exit code is returned."""
    script = "echo $SLURM_JOB_NUM_NODES $SLURM_NTASKS_PER_NODE; exit 3"
    ran = cluster.salloc("--ntasks-per-node=8", nodes=2, command=["bash", "-c", script], check=False)
    assert (ran.stdout, ran.returncode) == ("2 8\n", 3)


def test_partitions_limit_jobs_as_on_lumi(cluster: Cluster) -> None:
    """Too long a job in dev-g is refused; an exclusive node is not shared, another one is."""
    refused = cluster.run("sbatch", "-pdev-g", "-t3:01:00", "--wrap", "true", check=False)
    assert "Requested time limit is invalid" in refused.stderr
    script = "srun --jobid=$SLURM_JOB_ID true; squeue --noheader --format=%D:%C --jobs=$SLURM_JOB_ID"
    for partition, cores in (("standard-g", 56), ("small-g", 1)):
        ran = cluster.salloc(f"--partition={partition}", command=["bash", "-c", script])
        assert ran.stdout == f"1:{cores}\n"


def test_sbatch_job_leaves_its_output_and_exit_code(cluster: Cluster) -> None:
    """The log of a batch job and how it ended can be read after its end."""
    job = cluster.sbatch("#!/bin/bash\necho from $SLURM_JOB_ID\nexit 7\n", "--job-name=two words=x")
    ended = cluster.wait_job(job)
    assert (ended.state, ended.exit_code, ended.signal) == ("FAILED", 7, 0)
    assert cluster.log(job) == f"from {job}\n"


def test_job_on_a_node_set_down_ends_with_node_fail(cluster: Cluster) -> None:
    """An operator who sets a node down ends its job, and resume brings the node back."""
    job = cluster.sbatch("#!/bin/bash\nsleep 60\n", "--no-requeue")
    cluster.wait_job_state(job, "RUNNING")
    cluster.down("nid005000")
    assert cluster.wait_job(job).state == "NODE_FAIL"
    assert cluster.state("nid005000").startswith("down")
    cluster.resume("nid005000")
    assert cluster.state("nid005000") == "idle"


def test_killed_slurmd_is_noticed_and_its_node_returns(cluster: Cluster) -> None:
    """A node without slurmd is down after SlurmdTimeout and idle after a restart."""
    before = cluster.slurmd_pid("nid005002")
    cluster.kill_slurmd("nid005002")
    cluster.wait_state("nid005002", "down", timeout=30)
    cluster.restart_slurmd("nid005002")
    assert cluster.state("nid005002") == "idle"
    assert cluster.slurmd_pid("nid005002") != before


def test_node_without_power_keeps_no_process(cluster: Cluster) -> None:
    """Power off ends slurmd, steps and tasks of one node and leaves the others alone."""
    step = cluster.popen("srun", "-N2", "sleep", "60", stderr=subprocess.DEVNULL)
    cluster.wait(lambda: [p.name for p in cluster.processes()].count("sleep") == 2, "both tasks run")
    cluster.power_off("nid005001")
    assert {process.node for process in cluster.processes() if process.name == "sleep"} == {"nid005000"}
    step.kill()
    step.wait()


def test_requeued_job_runs_again(cluster: Cluster) -> None:
    """A requeued job starts a second time with the same id and a higher restart count."""
    script = '#!/bin/bash\necho restart ${SLURM_RESTART_COUNT:-0}\n[ -n "$SLURM_RESTART_COUNT" ] || sleep 60\n'
    job = cluster.sbatch(script, "--requeue", "--open-mode=append")
    cluster.wait(lambda: "restart 0" in cluster.log(job), "the job has started")
    cluster.run("scontrol", "requeue", str(job))
    ended = cluster.wait_job(job)
    assert (ended.state, ended.num_restarts) == ("COMPLETED", 1)
    assert "restart 1" in cluster.log(job)


def test_reset_ends_jobs_and_orphans(cluster: Cluster) -> None:
    """After reset no process is left on a node, not even one that left its session and its parent."""
    cluster.run("srun", "bash", "-c", "setsid sleep 60 </dev/null >/dev/null 2>&1 &")
    cluster.sbatch("#!/bin/bash\nsleep 60\n")
    cluster.wait(lambda: [p.name for p in cluster.processes()].count("sleep") == 2, "both sleeps run")
    cluster.reset()
    assert cluster.processes() == []
    assert cluster.run("squeue", "--noheader").stdout == ""


def test_failed_command_shows_what_it_said(cluster: Cluster) -> None:
    """The error of a failed command names the command, its exit code and its output."""
    with pytest.raises(ClusterError, match=r"srun --nodes=9 true: exit code 1(?s:.*)Node count"):
        cluster.run("srun", "--nodes=9", "true")
    with pytest.raises(ClusterError, match=r"sleep 60: still ran after 0.2 s"):
        cluster.run("sleep", "60", timeout=0.2)


def test_two_clusters_at_once_do_not_collide(cluster: Cluster) -> None:
    """A second cluster, here with enforced binding, runs beside the first and leaves it untouched."""
    with Cluster(num_nodes=1, task_plugin="task/affinity") as other:
        assert other.folder != cluster.folder
        cores = "import os; print(*os.sched_getaffinity(0))"
        bound = other.run("srun", "--cpu-bind=map_cpu:0", sys.executable, "-c", cores)
        assert bound.stdout == "0\n"
        assert cluster.run("srun", "-N4", "true").returncode == 0
        assert {*guards(cluster), *guards(other)} <= _owners("nid005000")
    assert cluster.run("srun", "-N4", "true").returncode == 0


def _owners(name: str) -> set[int]:
    """Return the guards of all clusters that have a node of this name; other tests may have theirs."""
    lines = [line.split() for line in hosts.HOSTS.read_text().splitlines() if hosts.MARK in line]
    return {int(words[-1]) for words in lines if words[1] == name}


def assert_nothing_left(folder: Path, guard_pid: int) -> None:
    """Check that no process, no folder and no name of a cluster is left."""
    deadline = time.monotonic() + 5
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not folder.exists()
    assert descendants(guard_pid) == []
    assert [pid for pid in pids() if str(folder) in environ(pid).values()] == []
    assert f"{hosts.MARK} {guard_pid}\n" not in hosts.HOSTS.read_text()


def test_stop_under_running_jobs_leaves_nothing() -> None:
    """After stop there is no process, no folder and no name, though jobs and clients were running."""
    require_tools()
    cluster = Cluster(num_nodes=8)
    cluster.start()
    client = cluster.popen("salloc", "-N4", "srun", "sleep", "60", stderr=subprocess.DEVNULL)
    cluster.wait(lambda: [p.name for p in cluster.processes()].count("sleep") == 4, "all tasks run")
    folder, (guard_pid,) = cluster.folder, guards(cluster)
    cluster.stop()
    assert_nothing_left(folder, guard_pid)
    assert client.wait(5) != 0


def guards(cluster: Cluster) -> list[int]:
    """Find the guard of a cluster by its command line."""
    found = []
    for pid in pids():
        path = Path(f"/proc/{pid}/cmdline")
        words = path.read_bytes().split(b"\0") if path.exists() else []
        if b"tests.cluster.guard" in words and os.fsencode(cluster.folder) in words:
            found.append(pid)
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_owner_that_is_killed_leaves_nothing(number: signal.Signals) -> None:
    """A test run that is terminated, interrupted or killed outright takes its cluster with it."""
    require_tools()
    program = textwrap.dedent("""
        import signal, sys, time
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started without it
        from tests.cluster import Cluster
        with Cluster(num_nodes=1) as cluster:
            cluster.popen("srun", "sleep", "60")
            cluster.wait(lambda: "sleep" in [p.name for p in cluster.processes()], "the task runs")
            print(cluster.folder, cluster._guard.pid, flush=True)
            time.sleep(60)
    """)
    owner = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    folder, guard_pid = owner.stdout.readline().split()
    owner.send_signal(number)
    owner.communicate(timeout=60)
    assert owner.returncode == -number
    assert_nothing_left(Path(folder), int(guard_pid))


def test_module_runs_one_command_and_stops() -> None:
    """`python -m tests.cluster --exec` returns the command's output and exit code."""
    require_tools()
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.cluster",
            "--nodes=1",
            "--exec",
            "bash",
            "-c",
            "srun -n2 echo hi; exit 5",
        ],
        cwd=REPOSITORY,
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert (ran.stdout, ran.returncode) == ("hi\nhi\n", 5)


def test_hosts_lines_of_a_dead_owner_are_removed(tmp_path: Path) -> None:
    """Names left by a guard that was killed go when the next cluster starts; other lines stay."""
    file = tmp_path / "hosts"
    file.write_text(f"127.0.0.1 localhost\n127.0.5.1 nid005000 {hosts.MARK} 999999999")
    hosts.add({"nid005001": "127.0.5.2"}, os.getpid(), file)
    assert file.read_text() == f"127.0.0.1 localhost\n127.0.5.2 nid005001 {hosts.MARK} {os.getpid()}\n"
    hosts.remove(os.getpid(), file)
    assert file.read_text() == "127.0.0.1 localhost\n"


def test_missing_slurm_skips_at_home_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where Slurm is missing a test is skipped, but under CI=true it fails and names the repair."""
    monkeypatch.setattr("tests.cluster.private.DAEMONS", ("slurmctld-that-is-missing",))
    monkeypatch.setenv("CI", "false")
    with pytest.raises(pytest.skip.Exception, match="slurmctld-that-is-missing"):
        fixture.require_tools()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(ClusterError, match="tools/install-slurm"):
        fixture.require_tools()


@pytest.mark.parametrize("options", [{"num_nodes": 0}, {"num_nodes": 17}, {"task_plugin": "task/cgroup"}])
def test_cluster_that_cannot_be_is_refused(options: dict[str, int | str]) -> None:
    """A wrong number of nodes or plugin is refused before anything starts, with the choices."""
    with pytest.raises(ClusterError, match="choose"):
        Cluster(**options)


def test_environ_hides_an_outer_slurm(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of a job in which the tests themselves run do not reach the private cluster."""
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    assert "SLURM_JOB_ID" not in cluster.environ
    assert cluster.environ["SLURM_CONF"] == str(cluster.conf)
    assert cluster.environ[CLUSTER_MARK] == str(cluster.folder)
