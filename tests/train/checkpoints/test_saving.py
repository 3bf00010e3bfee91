"""echelon.checkpoints() in scripts that distribute themselves: the losses are those of a run that nobody disturbed."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests import warm
from tests.tiers import some

HERE = Path(__file__).parent
CLOSE = 2e-5
"""Another number of ranks sums in another order."""


def run(folder: Path, num_ranks: int, *words: str, fails_at: int = 0) -> "subprocess.CompletedProcess[str]":
    line = ["-m", "echelon", "run", "-n", str(num_ranks), "--timeout", "90", *words]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    if fails_at:
        environ["FAILS_AT"] = str(fails_at)
    return warm.run(line, cwd=folder, environ=environ)


def rows(text: str) -> "dict[int, list[float]]":
    """Return the numbers of each step; a step that is printed again counts."""
    found = re.findall(r"^step (\d+) (.+)$", text, re.MULTILINE)
    return {int(step): [float(word) for word in rest.split()[1::2]] for step, rest in found}


SAVES = ("--checkpoint-every", "3steps")


@pytest.mark.parametrize(
    ("script", "kind", "dropout", "before", "after"),
    some([
        ("wrappers.py", "ddp", "0.1", 2, 2),
        ("wrappers.py", "ddp", "0", 2, 4),
        ("wrappers.py", "batch_norm", "0.1", 2, 2),
        ("wrappers.py", "fully_shard", "0.1", 2, 2),
        ("wrappers.py", "fully_shard", "0", 4, 2),
        ("strategies.py", "loader", "0.1", 2, 2),
        ("strategies.py", "loader", "0.1", 2, 1),
        ("strategies.py", "shard", "0.1", 2, 2),
        ("strategies.py", "shard", "0", 2, 4),
        ("strategies.py", "replicate", "0", 3, 2),
    ], 10, first=2),
)  # fmt: skip
def test_killed_run_goes_on(tmp_path: Path, script: str, kind: str, dropout: str, before: int, after: int) -> None:
    """On as many ranks the numbers are the same to the bit; on another number they are close."""
    words = (str(HERE / script), kind, dropout)
    undisturbed = run(tmp_path, before, *words)
    assert undisturbed.returncode == 0, undisturbed.stderr
    first = run(tmp_path, before, *SAVES, "--max-restarts", "0", "--run-dir", "one", *words, fails_at=14)
    assert first.returncode == 9, first.stderr
    second = run(tmp_path, after, *SAVES, "--resume", "one", *words)
    assert second.returncode == 0, second.stderr
    assert "continues after step 12, from a checkpoint" in second.stderr
    wanted, found = rows(undisturbed.stdout), rows(first.stdout + second.stdout)
    assert len(wanted) == 24
    assert min(rows(second.stdout)) == 13
    if before == after:
        assert found == wanted
    else:
        assert found.keys() == wanted.keys()
        for step, values in wanted.items():
            assert found[step] == pytest.approx(values, abs=CLOSE, rel=CLOSE), step


def test_restart_in_the_same_run(tmp_path: Path) -> None:
    """With workers, and with the limit of restarts that --checkpoint-every brings: each attempt gets further."""
    words = (str(HERE / "wrappers.py"), "ddp", "0")
    done = run(tmp_path, 2, *SAVES, "--env", "WORKERS=2", *words, fails_at=7)
    assert done.returncode == 0, done.stderr
    assert "continues after step 6, from a checkpoint" in done.stderr
    assert [row[-1] for row in rows(done.stdout).values()] == list(range(1, 25))


@pytest.mark.parametrize(
    ("script", "words", "ranks", "text"),
    [
        ("wrappers.py", ("fsdp1", "0"), 2, "is in FullyShardedDataParallel, whose weights are no DTensors"),
    ],
)
def test_what_cannot_be_saved_is_refused(
    tmp_path: Path, script: str, words: "tuple[str, ...]", ranks: int, text: str
) -> None:
    done = run(tmp_path, ranks, str(HERE / script), *words)
    assert done.returncode == 2, done.stderr
    assert text in done.stderr


def test_place_between_two_batches_is_refused(tmp_path: Path) -> None:
    """After 6 batches of 24 samples on 2 ranks there is no place in the batches of 5 ranks, which have 20."""
    words = (str(HERE / "wrappers.py"), "ddp", "0")
    first = run(tmp_path, 2, *SAVES, "--max-restarts", "0", "--run-dir", "one", *words, fails_at=7)
    assert first.returncode == 9, first.stderr
    second = run(tmp_path, 5, *SAVES, "--resume", "one", *words)
    assert second.returncode == 2, second.stderr
    text = (
        "the checkpoint is after 6 batches of 24 samples on 2 ranks, and the loader's batches of 20 samples on 5 ranks"
    )
    assert text in second.stderr
    assert "or use a DistributedSampler, and batches of which 144 samples are a multiple" in second.stderr
