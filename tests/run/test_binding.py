"""Ranks sit on cores of their own, say so from inside, and whoever moves is named."""

import json
import os

import pytest

from .shell import Shell

CORES = sorted(os.sched_getaffinity(0))
SAYS = """
import json, os, sys, time
cores = sorted(os.sched_getaffinity(0))
told = {"cores": cores, "threads": os.environ["OMP_NUM_THREADS"]}
open(f"rank-{os.environ['RANK']}.json", "w").write(json.dumps(told))
"""
MOVES = "import os, time\nif os.environ['RANK'] == '1':\n    os.sched_setaffinity(0, {FIRST})\ntime.sleep(4)\n"
WRAPPER = "if [ $RANK = 1 ]; then exec taskset -c {FIRST} sleep 4; fi; sleep 4"

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="one core cannot be divided")


def said(shell: Shell, num_ranks: int) -> list[dict[str, object]]:
    return [json.loads((shell.folder / f"rank-{rank}.json").read_text()) for rank in range(num_ranks)]


@pytest.mark.parametrize("launch", ["warm", "exec"])
def test_ranks_divide_the_cores(shell: Shell, launch: str) -> None:
    """Two ranks have the same number of cores, none in common, as many threads, and one line says that it is proved."""
    shell.script(SAYS)
    done = shell.fork("-n", "2", "--launch", launch, "--bind", "strict", "train.py")
    assert done.exit_code == 0, done.said
    first, second = (set(report["cores"]) for report in said(shell, 2))  # type: ignore[call-overload]
    assert len(first) == len(second) >= 1
    assert not first & second
    assert first | second <= set(CORES)
    assert int(str(said(shell, 2)[0]["threads"])) <= len(first)
    noun = "core" if len(CORES) < 4 else "cores"
    assert f"bound: 2 ranks, each on {len(CORES) // 2} {noun} of its own (proved)" in done.said


def test_without_devices_a_machine_is_shared(shell: Shell) -> None:
    """Outside of a job, on a machine without devices, nobody is bound: others may be using the cores."""
    shell.script(SAYS)
    done = shell.fork("-n", "2", "train.py")
    assert done.exit_code == 0, done.said
    assert [report["cores"] for report in said(shell, 2)] == [CORES, CORES]
    assert "bound" not in done.said


def test_own_number_of_threads_stays(shell: Shell) -> None:
    """A user's own OMP_NUM_THREADS wins over the cores of the binding."""
    shell.script(SAYS)
    shell.fork("-n", "2", "--bind", "strict", "--env", "OMP_NUM_THREADS=5", "train.py")
    assert {report["threads"] for report in said(shell, 2)} == {"5"}


@pytest.mark.parametrize("how", ["script", "wrapper"])
def test_rank_that_moves_is_named(shell: Shell, how: str) -> None:
    """With a rank's mask changed after the start, that rank and no other is named, and strict binding ends the run."""
    first = str(CORES[0])
    if how == "script":
        shell.script(MOVES.replace("FIRST", first))
        done = shell.fork("-n", "2", "--bind", "strict", "train.py")
    else:
        done = shell.fork("-n", "2", "--bind", "strict", "--", "bash", "-c", WRAPPER.replace("{FIRST}", first))
    assert done.exit_code == 1
    rank_1 = f"rank 1 on {os.uname().nodename} runs on cores {first}, planned "
    assert f"warning: {rank_1}" in done.said
    assert "a rank is not where it was planned: " + rank_1 in done.said
    assert "rank 0 on" not in done.said


def test_more_ranks_than_cores_are_not_bound(shell: Shell) -> None:
    """Ranks that must share cores are left to the kernel, and strict binding refuses that."""
    shell.script(SAYS)
    many = len(CORES) + 1
    done = shell.fork("-n", str(many), "--bind", "strict", "train.py")
    assert done.exit_code == 1
    assert f"{many} ranks share {len(CORES)} cores" in done.said
    done = shell.fork("-n", str(many), "train.py")
    assert done.exit_code == 0, done.said
