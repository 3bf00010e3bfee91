"""transformers' Trainer: the tiny model with the losses of one process, and a model and data by name."""

import os
from pathlib import Path

import pytest

from .lines import FRAMEWORKS, STEPS, Line, lines_of, losses, run

pytestmark = pytest.mark.framework("torch", "transformers", "accelerate")
EXAMPLE = FRAMEWORKS / "with_trainer.py"
ALONE, LOCAL, NODES, _FROM_THE_HUB = lines_of(EXAMPLE)
SIZES = ("--steps", str(STEPS), "--batch-size", "16")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Return the losses of one process, started by Python."""
    return losses(run(ALONE, tmp_path_factory.mktemp("alone"), os.environ, *SIZES))


ON_NODES = pytest.param(NODES, marks=[pytest.mark.slurm, pytest.mark.tier("all")])


@pytest.mark.parametrize("line", [LOCAL, ON_NODES], ids=lambda line: line.id)
def test_losses_are_those_of_one_process(
    line: Line, alone: list[float], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The Trainer on 2 ranks, and on 2 nodes x 2, has the losses of one process with the whole batch."""
    environ = request.getfixturevalue("slurm").environ if line.is_for_nodes else os.environ
    assert losses(run(line, tmp_path, environ, *SIZES)) == pytest.approx(alone, abs=1e-4)
    assert alone[-1] < alone[0]


@pytest.mark.framework("datasets")
def test_model_and_data_by_name(tmp_path: Path) -> None:
    """What is loaded from the Hub elsewhere is loaded from folders here: model, tokenizer, and a dataset's text."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPTNeoConfig, GPTNeoForCausalLM, PreTrainedTokenizerFast

    words = ["[UNK]", "good", "bad", "film"]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    sizes = GPTNeoConfig(vocab_size=len(words), hidden_size=16, num_layers=2, num_heads=2,
                         attention_types=[[["global", "local"], 1]], max_position_embeddings=16)  # fmt: skip
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(tmp_path / "model")
    torch.manual_seed(0)  # unlucky weights begin more than a tenth beside ln 4
    GPTNeoForCausalLM(sizes).save_pretrained(tmp_path / "model")
    (tmp_path / "reviews").mkdir()
    (tmp_path / "reviews" / "train.csv").write_text("text,label\n" + "good film bad film,1\n" * 200)

    named = ("--model", str(tmp_path / "model"), "--data", str(tmp_path / "reviews"), "--length", "8")
    found = losses(run(LOCAL, tmp_path, os.environ, *named, *SIZES))
    assert found[0] == pytest.approx(1.386, abs=0.1)  # ln 4: as good as guessing among four words
    assert found[-1] < found[0]
    saved = next(tmp_path.glob("echelon-runs/*/trained"))
    assert GPTNeoForCausalLM.from_pretrained(saved).config.vocab_size == 4
