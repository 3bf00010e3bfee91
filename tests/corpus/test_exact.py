"""The scripts with `--exact 4`: the bits of one rank on four, or refused with the reason."""

from pathlib import Path

import pytest
import torch
from tests.tiers import pick, some

from .runs import FOLDER, start

pytestmark = pytest.mark.apart
REFUSED = {
    "adversarial": "the first step differs from one device",
    "cnn_batchnorm": "changes its buffer",
    "collate_drops": "the collate function returns 22 of 24 samples",
    "distribution_outputs": "the script computes with the samples of a single shard",
    "flow": "gradients cannot pass from functions of the whole batch to functions of single samples",
    "listed_outputs": "gradients cannot pass from functions of the whole batch to functions of single samples",
    "loss_in_model": "the mean in this loss leaves targets out",
    "masked_tokens": "the first step differs from one device",
    "seq2seq": "gradients cannot pass from functions of the whole batch to functions of single samples",
    "whole_batch_gradient": "torch.autograd.grad for a tensor that has no entry for each sample",
}
SOME = ("critic_penalty", "gan", "graphs", "iterable_workers", "lbfgs", "simclr", "sparse_embedding", "transformer_lm")
ALL = sorted(path.stem for path in FOLDER.glob("*.py"))
CHOSEN = pick(SOME[2:3], all=[name for name in ALL if name not in REFUSED])


@pytest.mark.parametrize("name", CHOSEN)
def test_same_bits(tmp_path: Path, name: str) -> None:
    """All that is printed and saved is the same on one rank and on four."""
    one, four = (start(FOLDER / f"{name}.py", num_ranks, tmp_path, "--exact", "4") for num_ranks in (1, 4))
    assert len(one.losses()) >= 50
    assert four.out == one.out
    saved = [torch.load(done.folder / "model.pt", weights_only=False) for done in (one, four)]
    assert _tensors(saved[0])
    assert all(torch.equal(a, b) for a, b in zip(*map(_tensors, saved), strict=True))


@pytest.mark.parametrize("name", some(list(REFUSED), 8))
def test_refused(tmp_path: Path, name: str) -> None:
    """What cannot have the same bits stops at once."""
    done = start(FOLDER / f"{name}.py", 2, tmp_path, "--exact", "4")
    assert done.returncode == 2
    assert REFUSED[name] in done.err


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for entry in entries for tensor in _tensors(entry)]
