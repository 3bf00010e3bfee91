"""What is saved is whole and plain; what is loaded may come from any strategy, from none, or from the meta device."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.tiers import in_all, some
from tests.train.strategies import models, ranks, test_equal, training

from echelon.checkpoint import safetensors as ours
from echelon.train.strategies.strategy import Strategy

MOVES = [
    (2, Strategy(shard=2), Strategy(tensor=2)),
    (2, Strategy(pipeline=2, accumulation=2), Strategy(shard=2, reshard="never")),
    (2, Strategy(shard=2, reshard="never"), Strategy(pipeline=2, accumulation=4, schedule="interleaved")),
    (2, Strategy(tensor=2, parallel_loss=True), Strategy(context=2)),
    (4, Strategy(shard=2, tensor=2), Strategy(pipeline=4, accumulation=4)),
]


@pytest.mark.parametrize(("num_ranks", "first", "second"), some(MOVES, 6), ids=test_equal.name_of)
def test_training_goes_on_under_another_strategy(num_ranks: int, first: Strategy, second: Strategy) -> None:
    """Half of it under one, half under the other: the training of one device, momenta and decays by group included."""
    found = ranks.run(num_ranks, training.move, "gpt", first, second)
    assert found[0] == pytest.approx(training.alone_in_groups("gpt"), rel=2e-6)


def test_one_device_goes_on_with_what_was_saved(tmp_path: Path) -> None:
    """A plain model and a plain optimizer load the file."""
    ranks.run(2, training.save, "gpt", Strategy(shard=2), str(tmp_path / "model.pt"))
    content = torch.load(tmp_path / "model.pt", weights_only=True)
    model = models.make("gpt")
    model.load_state_dict(content["model"])
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(content["optimizer"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt"]
    assert optimizer.param_groups[0]["lr"] == 1e-2


@pytest.mark.parametrize(
    ("num_ranks", "strategy"),
    [(2, Strategy(shard=2)), in_all(2, Strategy(pipeline=2, accumulation=2)), in_all(4, Strategy(shard=2, tensor=2))],
    ids=test_equal.name_of,
)
def test_both_files_have_the_same_weights(num_ranks: int, strategy: Strategy, tmp_path: Path) -> None:
    """Weights that are written one after the other, and those beside the optimizer: the same, and nothing is left."""
    ranks.run(num_ranks, training.save, "gpt", strategy, str(tmp_path / "model.pt"))
    ranks.run(num_ranks, training.save, "gpt", strategy, str(tmp_path / "model.safetensors"))
    plain = torch.load(tmp_path / "model.pt", weights_only=True)["model"]
    found = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert found.keys() == plain.keys() == models.make("gpt").state_dict().keys()
    assert all(torch.equal(found[name], one) for name, one in plain.items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt", "model.safetensors"]


def test_safetensors_are_those_of_the_package(tmp_path: Path) -> None:
    """Either reads what the other wrote, in one file and in a folder with an index."""
    state: dict[str, Any] = {
        "a": torch.randn(3, 5), "b": torch.arange(7), "c": torch.randn(2).bfloat16(), "d": torch.tensor(1.5),
        "e": torch.zeros(0, 4), "f": torch.tensor([True, False]),
    }  # fmt: skip
    ours.write(str(tmp_path / "ours.safetensors"), state)
    safetensors.torch.save_file(state, tmp_path / "theirs.safetensors")
    for found in (
        safetensors.torch.load_file(tmp_path / "ours.safetensors"),
        ours.read(str(tmp_path / "theirs.safetensors")),
    ):
        assert {name: (one.dtype, one.shape) for name, one in found.items()} == {
            name: (one.dtype, one.shape) for name, one in state.items()
        }
        assert all(torch.equal(found[name], one) for name, one in state.items())
    (tmp_path / "ours.safetensors").unlink()
    (tmp_path / "theirs.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    (tmp_path / ours.INDEX).write_text('{"weight_map": {"a": "model-00001-of-00001.safetensors"}}')
    assert ours.read(str(tmp_path)).keys() == state.keys()


META = [
    (2, Strategy(replicate=2)),
    (2, Strategy(shard=2, offload=True)),
    (2, Strategy(tensor=2, sequence_parallel=True)),
    (2, Strategy(pipeline=2, accumulation=2)),
    (2, Strategy(context=2)),
    (4, Strategy(shard=2, tensor=2, parallel_loss=True)),
]


@pytest.mark.parametrize(("num_ranks", "strategy"), some(META, 6, first=3), ids=test_equal.name_of)
def test_model_made_on_the_meta_device(num_ranks: int, strategy: Strategy, tmp_path: Path) -> None:
    """Its first weights are the same under every strategy, or those of a file; it trains as any other."""
    drawn = ranks.run(1, training.from_meta, "gpt", Strategy(), "")[0]
    safetensors.torch.save_file(models.make("gpt").state_dict(), tmp_path / "model.safetensors")
    found = ranks.run(num_ranks, training.from_meta, "gpt", strategy, str(tmp_path / "model.safetensors"))[0]
    assert found["drawn"].keys() == drawn["drawn"].keys()
    assert all(torch.equal(found["drawn"][name], one) for name, one in drawn["drawn"].items())
    assert found["losses"] == pytest.approx(test_equal.alone("gpt", "adamw", 0.5)["losses"], rel=2e-6)
