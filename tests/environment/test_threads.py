import os

import pytest

from echelon.environment import threads


def test_cores_are_those_of_the_affinity_mask():
    """The cores are the ones that the kernel lets this process run on."""
    assert threads.cores() == sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("num_cores", "local_world_size", "num_threads"), [(56, 8, 7), (2, 4, 1), (7, 2, 3), (4, 1, 4), (4, 0, 4)]
)
def test_omp_num_threads(num_cores, local_world_size, num_threads):
    """Ranks of a node share its cores, and each has at least one thread."""
    assert threads.omp_num_threads(num_cores, local_world_size) == num_threads


def _cgroup(tmp_path, line, files):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{line}\n")
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("0::/slurm/job_7", {"slurm/job_7/cpu.max": "100000 100000"}),
        ("0::/slurm/job_7", {"slurm/cpu.max": "150000 100000", "slurm/job_7/cpu.max": "max 100000"}),
        ("0::/slurm/job_7", {"cpu.max": "50000 100000"}),
        (
            "4:cpu,cpuacct:/job_7",
            {"cpu/job_7/cpu.cfs_quota_us": "100000", "cpu/job_7/cpu.cfs_period_us": "100000"},
        ),
    ],
    ids=["v2", "v2-parent", "v2-inside-container", "v1"],
)
def test_num_cores_under_a_quota_of_one_core(tmp_path, monkeypatch, line, files):
    """A quota of about one core is one core, however many the mask has."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    assert threads.num_cores(_cgroup(tmp_path, line, files)) == 1


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("0::/", {"cpu.max": "max 100000"}),
        ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}),
        ("2:memory:/", {}),
    ],
)
def test_num_cores_without_a_quota(tmp_path, line, files):
    """Without a quota the mask counts."""
    assert threads.num_cores(_cgroup(tmp_path, line, files)) == len(os.sched_getaffinity(0))


def test_num_cores_without_cgroups(tmp_path):
    """Where the kernel shows no cgroup, the mask counts."""
    assert threads.num_cores(str(tmp_path)) == len(os.sched_getaffinity(0))
