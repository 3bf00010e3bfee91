"""An unchanged script whose model is split over ranks (--scale fsdp, tensor, …) is killed, and goes on.

In the tier "all" also in other ways than before.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch
from tests.tiers import pick

from echelon.checkpoint import safetensors
from echelon.orders import rehearsal
from echelon.orders.rehearsal import KILL_RANK, Rehearsal

from .test_resume import Folder, assert_same, numbers

SCRIPT = Path(__file__).with_name("blocks.py")
FSDP, TENSOR, PIPELINE = ("--scale", "fsdp"), ("--scale", "tensor"), ("--scale", "pipeline")
CONTEXT, DATA = ("--scale", "context"), ("--scale", "data")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> "tuple[str, Path]":
    folder = Folder(tmp_path_factory.mktemp("plain") / "run", SCRIPT)
    done = folder.plain()
    assert done.returncode == 0, done.stderr
    return done.stdout, folder.path


CASES = [
    (2, FSDP, 3, FSDP), (4, TENSOR, 2, FSDP), (2, DATA, 4, PIPELINE),
]  # fmt: skip
MORE = [
    (2, (*FSDP, "--exact", "4"), 4, (*FSDP, "--exact", "4")), (2, CONTEXT, 3, CONTEXT),
    (3, FSDP, 1, DATA), (3, PIPELINE, 2, DATA), (2, FSDP, 2, FSDP), (1, DATA, 2, FSDP), (2, TENSOR, 2, TENSOR),
    (2, PIPELINE, 2, PIPELINE), (2, PIPELINE, 3, PIPELINE), (3, CONTEXT, 2, TENSOR), (4, FSDP, 2, PIPELINE),
    (2, DATA, 4, TENSOR), (2, DATA, 3, CONTEXT), (3, FSDP, 2, TENSOR), (2, FSDP, 3, CONTEXT), (2, TENSOR, 3, DATA),
    (2, TENSOR, 3, CONTEXT), (2, TENSOR, 3, PIPELINE), (3, CONTEXT, 2, DATA), (2, CONTEXT, 3, FSDP),
    (3, CONTEXT, 2, PIPELINE), (3, PIPELINE, 2, FSDP), (3, PIPELINE, 2, TENSOR), (2, PIPELINE, 3, CONTEXT),
]  # fmt: skip


@pytest.mark.parametrize(("before", "how", "after", "other"), pick([(3, FSDP, 2, TENSOR)], all=CASES + MORE))
def test_killed_run_is_resumed(
    tmp_path: Path,
    undisturbed: "tuple[str, Path]",
    before: int,
    how: "tuple[str, ...]",
    after: int,
    other: "tuple[str, ...]",
) -> None:
    """Also in another way than before, and on another number of ranks."""
    folder = Folder(tmp_path / "run", SCRIPT)
    every = ("--checkpoint-every", "5steps")
    rank = before - 1
    first = folder.run(
        before, *how, *every, "--max-restarts", "0", "--run-dir", "one", kind=KILL_RANK, rank=rank, step=24
    )
    assert first.returncode == 137, first.stderr
    second = folder.run(after, *other, *every, "--resume", "one")
    assert second.returncode == 0, second.stderr
    assert "; its variables were put back in" in second.stderr
    assert "repeats its steps" not in first.stderr + second.stderr
    saved = int(re.search(r"continues after step (\d+)", second.stderr)[1])  # type: ignore[index]
    assert min(int(name[5:]) for name in numbers(second.stdout) if name.startswith("step")) == saved + 1
    assert_same(first.stdout + second.stdout, undisturbed[0])
    here, there = (torch.load(one / "model.pt", weights_only=True) for one in (folder.path, undisturbed[1]))
    for name, tensor in there.items():
        torch.testing.assert_close(here[name], tensor, atol=1e-4, rtol=1e-4)


COPIES = [
    ("average", FSDP, FSDP), ("average", FSDP, DATA), ("anchor", TENSOR, TENSOR), ("anchor", FSDP, FSDP),
    ("anchor", FSDP, DATA), ("anchor", DATA, TENSOR), ("average repeated", FSDP, FSDP),
]  # fmt: skip


def _killed(folder: Folder, *how: str) -> str:
    """Kill a run after some saves, and return what it has printed."""
    every = ("--checkpoint-every", "5steps", "--max-restarts", "0", "--run-dir", "one")
    done = folder.run(2, *how, *every, kind=KILL_RANK, rank=1, step=24)
    assert done.returncode == 137, done.stderr
    return str(done.stdout)


def _continued(folder: Folder, *how: str) -> "subprocess.CompletedProcess[str]":
    return folder.run(2, *how, "--checkpoint-every", "5steps", "--resume", "one")


@pytest.mark.tier("all")
@pytest.mark.parametrize(("words", "how", "other"), COPIES)
def test_copies_of_weights_are_put_back(
    tmp_path: Path, words: str, how: "tuple[str, ...]", other: "tuple[str, ...]"
) -> None:
    """An average in a list that changes, and an anchor in a tuple: both are cut as the weights are."""
    folder = Folder(tmp_path / "run", SCRIPT, *words.split())
    undisturbed = folder.plain()
    first = _killed(folder, *how)
    second = _continued(folder, *other)
    assert second.returncode == 0, second.stderr
    assert ("were repeated without computing" in second.stderr) == ("repeated" in words)
    assert_same(first + second.stdout, undisturbed.stdout)


@pytest.mark.tier("all")
def test_copies_in_a_tuple_of_a_repeated_loop_are_refused(tmp_path: Path) -> None:
    """The loop makes whole tensors, and no tuple can have others."""
    folder = Folder(tmp_path / "run", SCRIPT, "anchor", "repeated")
    _killed(folder, *FSDP)
    again = _continued(folder, *FSDP)
    assert again.returncode == 2
    assert "anchor.0 is in a tuple, and it was a part on each rank" in again.stderr
    whole = _continued(folder, *DATA)
    assert whole.returncode == 0, whole.stderr


@pytest.mark.tier("all")
def test_copied_model_is_refused(tmp_path: Path) -> None:
    """Its parts would be those of the model before the training; whole, they are found."""
    folder = Folder(tmp_path / "run", SCRIPT, "copies")
    _killed(folder, *TENSOR)
    again = _continued(folder, *TENSOR)
    assert again.returncode == 2
    assert "a model that the loop has copied" in again.stderr
    whole = _continued(folder, *DATA)
    assert whole.returncode == 0, whole.stderr


def test_attribute_that_the_stages_count_apart_is_refused(tmp_path: Path) -> None:
    done = Folder(tmp_path / "run", SCRIPT, "counts").run(2, *PIPELINE, "--checkpoint-every", "5steps")
    assert done.returncode == 2
    assert "calls: the ranks of a pipeline have other values of it" in done.stderr


@pytest.mark.tier("all")
@pytest.mark.parametrize(("how", "other"), [(TENSOR, DATA), (DATA, FSDP)])
def test_compiled_model_goes_on(
    tmp_path: Path, undisturbed: "tuple[str, Path]", how: "tuple[str, ...]", other: "tuple[str, ...]"
) -> None:
    """A weight has one name, compiled or not; reads within the compiled model are not the script's."""
    folder = Folder(tmp_path / "run", SCRIPT, "compile")
    first = _killed(folder, *how)
    second = _continued(folder, *other)
    assert second.returncode == 0, second.stderr
    assert_same(first + second.stdout, undisturbed[0])


@pytest.mark.tier("all")
@pytest.mark.parametrize("how", [FSDP, PIPELINE])
def test_killed_rank_ends_no_run(tmp_path: Path, undisturbed: "tuple[str, Path]", how: "tuple[str, ...]") -> None:
    folder = Folder(tmp_path / "run", SCRIPT)
    options = (*how, "--checkpoint-every", "10steps", "--run-dir", "one")
    done = folder.run(2, *options, kind=KILL_RANK, rank=1, step=26)
    assert done.returncode == 0, done.stderr
    assert "continues after step" in done.stderr
    assert_same(done.stdout, undisturbed[0])
    assert json.loads((folder.path / "one/report.json").read_text())["restarts"] == 1


@pytest.mark.tier("all")
def test_no_rank_saves_the_whole(tmp_path: Path) -> None:
    """Each rank's file has its part of the weights and of the optimizer's states."""
    folder = Folder(tmp_path / "run", SCRIPT)
    done = folder.run(4, *FSDP, "--checkpoint-every", "20steps", "--run-dir", "one")
    assert done.returncode == 0, done.stderr
    newest = max((folder.path / "one/checkpoints").glob("step-*"))
    sizes = [path.stat().st_size for path in sorted(newest.glob("rank-*.safetensors"))]
    assert len(sizes) == 4
    assert max(sizes) < 0.4 * sum(sizes), sizes


@pytest.mark.parametrize("how", pick([PIPELINE], all=[FSDP, PIPELINE]))
def test_rehearsal_compares_the_whole(tmp_path: Path, undisturbed: "tuple[str, Path]", how: "tuple[str, ...]") -> None:
    """The state at the end has the weights and optimizer states of all ranks."""
    (tmp_path / "record").mkdir()
    order = Rehearsal(folder=str(tmp_path / "record"), steps=6)
    done = Folder(tmp_path / "run", SCRIPT).rehearse(2, order, *how, "--checkpoint-every", "3steps")
    assert done.returncode == 0, done.stderr
    state = safetensors.read(str(tmp_path / "record" / rehearsal.STATE_FILE))
    weights = torch.load(undisturbed[1] / "model.pt", weights_only=True)
    shapes = {name.partition("/")[2]: one.shape for name, one in state.items() if name.startswith("model-0/")}
    assert shapes == {name: one.shape for name, one in weights.items()}
    for key in ("exp_avg", "exp_avg_sq", "step"):
        assert sum(name.endswith("/" + key) for name in state) == len(weights)
