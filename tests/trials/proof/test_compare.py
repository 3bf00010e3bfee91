"""The comparison of records alone: the records are written by hand, and no rank runs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from echelon.orders import records
from echelon.orders.records import GRADIENT, INITIAL, PARAMETER
from echelon.trials.proof import compare, factors
from echelon.trials.proof.tensors import apart, is_near, multiple

NUM_RANKS = 2
NAME = "Net.fc.weight"
WEIGHT = torch.arange(1.0, 9.0).view(2, 4)
SLOPE = WEIGHT.flip(0) / 8


def write(
    folder: Path, gradients: list[torch.Tensor], *, weights: list[torch.Tensor] | None = None, loss: float = 2.0
) -> str:
    """Write the record of two steps, and the tensors of the first, of a rank for each gradient."""
    folder.mkdir()
    weights = weights or [WEIGHT] * len(gradients)
    (folder / records.ABOUT).write_text(json.dumps({"world_size": len(gradients)}))
    for rank, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
        is_alone = len(gradients) == 1
        digest, num_samples = (sum(range(1, NUM_RANKS + 1)), 4 * NUM_RANKS) if is_alone else (rank + 1, 4)
        row = {"learning_rate": 0.1, "learning_rates": [0.1], "loss": loss, "passes": 1, "drawn": [rank],
               "chosen": None, "norms": {NAME: float(gradient.norm())}, "digest": digest,
               "samples": num_samples}  # fmt: skip
        (folder / (records.STEPS_FILE % rank)).write_text(
            "".join(json.dumps({"step": step, **row}) + "\n" for step in (1, 2))
        )
        (folder / (records.FACTS_FILE % rank)).write_text("{}")
        tensors = {"start": {INITIAL + NAME: weight}, "gradients": {GRADIENT + NAME: gradient},
                   "parameters": {PARAMETER + NAME: weight - 0.1 * gradient}}  # fmt: skip
        for kind, content in tensors.items():
            torch.save(content, folder / records.tensors_file(1, kind, rank))
        torch.save({NAME: gradient}, folder / (records.LOCAL_FILE % (1, rank)))
    return str(folder)


@pytest.fixture
def oracle(tmp_path: Path) -> list[str]:
    """Return the records of one device, and of one device with its samples in another order."""
    return [write(tmp_path / "one", [SLOPE]), write(tmp_path / "reordered", [SLOPE])]


def verdict(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Return what the command prints."""
    assert compare.main(list(words)) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_equal_records(tmp_path: Path, oracle: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks with the tensors of one device are equal to the bit, tensor by tensor."""
    several = write(tmp_path / "several", [SLOPE, SLOPE])
    result = verdict(capsys, *oracle, several, "2", "own")
    assert (result["verdict"], result["is_wrong"]) == (compare.EQUAL, False)
    assert [(row["kind"], row["difference"]) for row in result["tensors"]] == [
        ("start", 0.0), ("gradients", 0.0), ("parameters", 0.0)]  # fmt: skip


def test_multiple_of_the_gradient(tmp_path: Path, oracle: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A gradient that is twice as large on two ranks is wrong, with the factor and its meaning."""
    several = write(tmp_path / "several", [2 * SLOPE, 2 * SLOPE])
    result = verdict(capsys, *oracle, several, "2", "scaled")
    assert (result["is_wrong"], result["first_step"], result["tensor"]) == (True, 1, GRADIENT + NAME)
    assert result["factor"] == pytest.approx(2.0)
    assert "that is the number of ranks, 2" in result["meaning"]


@pytest.mark.parametrize(("size", "is_wrong"), [(6e-8, False), (6e-4, True)])
def test_loss_whose_terms_cancel(
    tmp_path: Path, size: float, is_wrong: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loss that is 0 but for rounding, as that of advantages whose mean is 0, may have any digits."""
    both = [write(tmp_path / name, [SLOPE], loss=-size) for name in ("one", "reordered")]
    several = write(tmp_path / "several", [SLOPE, SLOPE], loss=-0.85 * size)
    assert verdict(capsys, *both, several, "2", "scaled")["is_wrong"] == is_wrong


def test_ranks_that_exchange_nothing(tmp_path: Path, oracle: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks that each use their own gradient are told apart from ranks that scale their mean."""
    several = write(tmp_path / "several", [SLOPE * WEIGHT, SLOPE / WEIGHT])
    assert verdict(capsys, *oracle, several, "2", "own")["meaning"] == factors.ALONE


def test_cut_tensor_is_joined(tmp_path: Path, oracle: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Two halves of a weight are compared with the whole weight of one device."""
    several = write(tmp_path / "several", list(SLOPE.chunk(2, 1)), weights=list(WEIGHT.chunk(2, 1)))
    result = verdict(capsys, *oracle, several, "2", "own")
    assert not result["is_wrong"]
    assert [row["difference"] for row in result["tensors"]] == [0.0, 0.0, 0.0]


def test_run_that_failed_shows_a_mistake_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that one rank writes while another reads it needs no other record."""
    several = write(tmp_path / "several", [SLOPE, SLOPE])
    assert verdict(capsys, "--alone", several, "2") == {}
    for rank, deed in enumerate((records.WRITES, records.READS)):
        facts = {"files": [[deed, "/data/model.pt", 0, 1]]}
        (Path(several) / (records.FACTS_FILE % rank)).write_text(json.dumps(facts))
    result = verdict(capsys, "--alone", several, "2")
    assert result["tensor"] == "model.pt"
    assert result["why"].startswith("rank 0 writes model.pt and rank 1 reads it")


def test_distances_of_tensors() -> None:
    """NaN equals NaN; other shapes are infinitely far; complex numbers keep their imaginary part."""
    nan = torch.tensor([1.0, float("nan")])
    assert apart(nan, nan.clone()) == 0.0
    assert apart(nan, torch.ones(2)) == apart(WEIGHT, WEIGHT[0]) == float("inf")
    waves = torch.tensor([1 + 1j, 2 - 1j])
    assert multiple(3 * waves, waves) == pytest.approx(3.0)
    assert not is_near(waves.conj(), waves)
    assert multiple(WEIGHT, WEIGHT.flip(0)) == multiple(WEIGHT, WEIGHT[0]) == 0.0
