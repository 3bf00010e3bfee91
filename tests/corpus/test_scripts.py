"""Scripts for one device, written in the styles that people use, unchanged on 1, 2, 3 and 4 ranks.

`python script.py` is the oracle: each script runs once by itself and once for each number of ranks.
"""

import itertools
import re
from pathlib import Path

import pytest
from tests.tiers import pick, some

from . import same
from .runs import FOLDER, Runs, start

pytestmark = pytest.mark.apart
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
RANKS = (1, 2, 3, 4)
USUAL = (
    "accumulate", "adversarial", "checkpoint_resume", "clamped_gradients", "cnn_batchnorm", "compiled", "csv_writer",
    "distribution_outputs", "dropout_transformer", "energy_model", "gan", "graphs", "implicit_layer", "iterable",
    "lbfgs", "old_classifier", "packed_stream", "padded_tagger", "sampler_weighted", "seq2seq", "sparse_embedding",
    "tasks_inside", "vae", "weights_of_a_set", "zipped_uneven",
)  # fmt: skip
"""With the scripts that are refused these reached all functions of echelon that 102 scripts reached (2026-11-29)."""

# Scripts whose weights are spread over the ranks as well, and what fully_shard does not follow.
FSDP = ("checkpoint_resume", "gan", "grad_scaler", "seq2seq", "transformer_lm", "two_optimizers", "vae")
NOT_FSDP: dict[str, str] = {
    "ema": "mixed torch.Tensor and DTensor",
    "lbfgs": "LBFGS computes with all weights as one vector",
    "unfreeze_midway": "was frozen after echelon sharded the model, and fully_shard does not notice",
}


REFUSED: dict[str, str] = {
    "batch_sampler_of_one": "the script's batch has 1 sample, but 2 ranks share it",
    "caught_on_a_rank": "Strict raised ValueError: an outlier on rank 1, for this rank's samples of a batch",
    "data_parallel": "the script uses nn.DataParallel",
    "buffer_of_rows": "Centred changes its buffer Centred.mean with the samples that it gets",
    "full_graph": "the script called Net with one graph: 90 nodes in a tensor of shape (90, 5)",
    "hidden_process_group": "the script distributes itself: it calls torch.distributed.init_process_group()",
    "mentions_ddp": "distributes itself: it mentions torch.nn.parallel.DistributedDataParallel",
    "negatives_in_model": "Pairs mixes the samples of its batch in mm(), at ",
    "one_by_one": "the script's batch has 1 sample, but 2 ranks share it",
    "own_process_group": "distributes itself: it mentions torch.distributed",
    "model_by_hand": "no optimizer of torch.optim has the weights",
    "one_sample_drawn": "the batch has 1 sample, and 2 ranks cannot share it: the script called Sequential with",
    "own_update": "no optimizer of torch.optim has the weights (of shape (4, 1), (1,)): the script",
    "sparse_graph": "the script called GCN with one graph: 40 nodes",
    "weights_in_functions": "called no model: it called forward() directly, or functions with the weights",
    "reads_rank": "distributes itself: it reads RANK",
    "time_first": "its batch dimension is dim 1: LSTM has batch_first=False",
    "word_language_model": "the script called RNNModel with a tensor of shape (7, 8), and its batch dimension is dim 1",
    "two_devices": "the model has parameters on several devices: cpu, meta",
    "uses_accelerate": "distributes itself: it imports accelerate",
    "uses_lightning": "distributes itself: it imports lightning",
}
USUALLY_REFUSED = (
    "caught_on_a_rank", "data_parallel", "full_graph", "mentions_ddp", "model_by_hand", "negatives_in_model",
    "one_sample_drawn", "own_update", "word_language_model",
)  # fmt: skip


EVENTS = re.compile(r"(?<=tfevents)\..*")  # TensorBoard's time, computer and process


FEW_RANKS = [(name, 3 if name == USUAL[-1] else 2) for name in USUAL]
"""In the tier "all" every script runs on 1, 2, 3 and 4 ranks."""


@pytest.mark.parametrize(("name", "num_ranks"), pick(FEW_RANKS, all=list(itertools.product(SCRIPTS, RANKS))))
def test_is_the_training_of_one_device(runs: Runs, name: str, num_ranks: int) -> None:
    """Losses, weights, output and files are those of one device; where that cannot be, the training goes as well.

    What was saved loads without echelon and has the names that one device gives; each line appears once; each file is
    whole and was written once.
    """
    alone, scaled = runs.pair(name, num_ranks)
    expected = alone.losses()
    assert len(expected) >= 50
    same.losses(name, expected, scaled.losses(), is_one=num_ranks == 1)
    same.weights(name, alone.folder, scaled.folder, is_one=num_ranks == 1)
    are_equal = name not in same.CLOSE or num_ranks == 1
    same.text(alone.out, scaled.out, are_equal=are_equal)
    assert [EVENTS.sub("", file) for file in scaled.files()] == [EVENTS.sub("", file) for file in alone.files()]
    for file in scaled.files():
        _compare(alone.folder / file, scaled.folder / file, are_equal=are_equal)


def _compare(alone: Path, scaled: Path, *, are_equal: bool) -> None:
    """Compare the texts of two files; those with tensors need only be whole, and those of TensorBoard hold the time."""
    import numpy as np
    import torch

    if scaled.suffix == ".pt":
        torch.load(scaled)
    elif scaled.suffix in (".npy", ".npz"):
        np.load(scaled)
    elif not EVENTS.search(scaled.name):
        same.text(alone.read_text(), scaled.read_text(), are_equal=are_equal)


@pytest.mark.parametrize("name", pick(FSDP[:1], all=FSDP))
def test_fully_sharded(runs: Runs, tmp_path: Path, name: str) -> None:
    """With the weights spread over the ranks the losses are the same, and what is saved is whole."""
    import torch

    alone, scaled = runs.get(name, 0), start(FOLDER / f"{name}.py", 2, tmp_path, "--scale", "fsdp")
    assert scaled.losses() == pytest.approx(alone.losses(), rel=same.RELATIVE, abs=2e-8)
    expected, found = (same.flat(torch.load(done.folder / "model.pt")) for done in (alone, scaled))
    assert list(found) == list(expected)
    for key, value in found.items():
        assert type(value) is type(expected[key])
        if isinstance(value, torch.Tensor):
            assert torch.allclose(value, expected[key], rtol=1e-3, atol=1e-5), key


@pytest.mark.parametrize("name", some(sorted(NOT_FSDP), 3))
def test_not_fully_sharded(tmp_path: Path, name: str) -> None:
    """What fully_shard does not follow ends the run; nothing trains on wrongly."""
    done = start(FOLDER / f"{name}.py", 2, tmp_path, "--scale", "fsdp")
    assert done.returncode != 0
    assert NOT_FSDP[name] in done.err
    assert "way out: echelon run --scale data …" in done.err


@pytest.mark.tier("all")
def test_batch_norm_over_all_ranks(runs: Runs, tmp_path: Path) -> None:
    """With --sync-bn BatchNorm has the statistics of the whole batch, and the losses are those of one device."""
    done = start(FOLDER / "cnn_batchnorm.py", 3, tmp_path, "--sync-bn")
    assert done.losses() == pytest.approx(runs.get("cnn_batchnorm", 0).losses(), rel=same.RELATIVE)


@pytest.mark.parametrize("refused", pick(USUALLY_REFUSED, all=sorted(REFUSED)))
def test_refused(runs: Runs, refused: str) -> None:
    """A script that cannot be scaled ends with the reason and a way out, and leaves no result."""
    done = runs.get(f"refused/{refused}", 2)
    assert done.returncode == 2
    assert "Traceback" not in done.err
    assert REFUSED[refused] in done.err
    assert "echelon run" in done.err or "way out" in done.err
    assert done.files() == []


def test_refused_program(tmp_path: Path) -> None:
    """A program after -- cannot be scaled."""
    done = start(Path("true"), 2, tmp_path, "--")
    assert done.returncode == 2
    assert "--scale data is for a Python script, but echelon does not look into true" in done.err


def test_refused_more_ranks_than_samples(tmp_path: Path) -> None:
    """A script that trains on 4 ranks is refused on 5 where its batches have 4 samples."""
    done = start(FOLDER / "accumulate.py", 5, tmp_path)
    assert done.returncode == 2
    assert "the script's batch has 4 samples, but 5 ranks share it" in done.err


def test_every_refused_script_is_listed() -> None:
    """Each script that must be refused stands in the table, and what is close is a script."""
    assert {path.stem for path in (FOLDER / "refused").glob("*.py")} == REFUSED.keys()
    assert same.CLOSE.keys() | NOT_FSDP.keys() | set(FSDP) <= set(SCRIPTS)


def test_scripts_know_one_device() -> None:
    """No script knows of ranks, and each has the size of something that people write in an hour."""
    knows = re.compile(r"echelon|\bRANK\b|WORLD_SIZE|torch\.distributed\b|DistributedDataParallel")
    texts = {name: (FOLDER / f"{name}.py").read_text() for name in SCRIPTS}
    assert [name for name, text in texts.items() if knows.search(text) or text.count("\n") > 90] == []


def test_refused_where_a_lost_rank_would_start_all_again(tmp_path: Path) -> None:
    """The other rank loses its connection to the one that refuses; that is no loss after which a run begins again."""
    done = start(FOLDER / "refused/buffer_of_rows.py", 2, tmp_path, "--checkpoint-every", "10steps")
    assert done.returncode == 2
    assert REFUSED["buffer_of_rows"] in done.err
    assert "starting all ranks again" not in done.err
