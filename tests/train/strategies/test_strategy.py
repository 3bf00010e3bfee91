"""A strategy is checked when it is made, says every factor, and offers what would be right."""

import subprocess
import sys
from typing import Any

import pytest

import echelon
from echelon.errors import UsageError
from echelon.train.strategies import versions
from echelon.train.strategies.strategy import Strategy, StrategyError


def test_every_factor_is_printed() -> None:
    """Whoever reads a log sees all of it, and what would make it again."""
    strategy = Strategy(shard=2, tensor=2, checkpointing="full", accumulation=4)
    assert str(strategy) == (
        "replicate 1 × shard 2 × tensor 2 × pipeline 1 × context 1 = 4 ranks · reshard always · offload no · "
        "precision fp32 · checkpointing full · compile no · accumulation 4 · sequence parallel no · parallel loss no · "
        "schedule 1f1b · stages per rank 2 · split balanced · attention all-gather"
    )
    assert eval(strategy.as_code()) == strategy


def test_import_needs_no_torch() -> None:
    """Reading a strategy costs nothing; torch is imported where a run begins."""
    code = "import sys, echelon; print(echelon.Strategy(shard=2)); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    assert echelon.Strategy is Strategy


def test_error_is_one_of_echelon() -> None:
    """It has exit code 2, a way out, and is called as it can be imported."""
    with pytest.raises(StrategyError) as caught:
        Strategy(precision="bf8")
    assert isinstance(caught.value, UsageError)
    assert caught.value.exit_code == 2
    assert str(caught.value) == "precision is 'bf8'; the choices are fp32, bf16, fp16\n  way out: precision=\"fp32\""


@pytest.mark.parametrize(
    ("strategy", "num_ranks", "offered"),
    [
        (Strategy(shard=3, tensor=2), 4, "Strategy(shard=2, tensor=2)"),
        (Strategy(), 8, "Strategy(replicate=8)"),
        (Strategy(shard=8), 4, "Strategy(shard=4)"),
        (Strategy(replicate=2, pipeline=2, accumulation=2), 6, "Strategy(replicate=3, pipeline=2, accumulation=2)"),
    ],
)
def test_axes_that_do_not_multiply_to_the_ranks(strategy: Strategy, num_ranks: int, offered: str) -> None:
    """All factors are shown, and the nearest that multiply to the ranks are offered; each of those is valid."""
    with pytest.raises(StrategyError) as caught:
        strategy.check_ranks(num_ranks)
    assert f"= {strategy.num_ranks}, but the number of ranks is {num_ranks}" in caught.value.message
    assert offered in caught.value.hint
    for text in caught.value.hint.partition("; or ")[0].split(", Strategy("):
        other = eval("Strategy(" + text.removeprefix("Strategy("))
        assert other.num_ranks == num_ranks


@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        ({"shard": 0}, "shard is 0, but must be a number of at least 1", "shard=1"),
        ({"tensor": True}, "tensor is True", "tensor=1"),
        ({"reshard": "sometimes"}, "'sometimes'; the choices are always, after-backward, never", 'reshard="always"'),
        ({"schedule": "2f2b"}, "the choices are gpipe, 1f1b, interleaved, looped-bfs, zero-bubble, zbv, dualpipev",
            "gpipe"),
        ({"shard": 2, "reshard": "never", "tensor": 2}, "ZeroRedundancyOptimizer distributes whole", "after-backward"),
        ({"offload": True, "reshard": "never"}, "keeps weights on every device", 'reshard="always"'),
        ({"context": 2, "tensor": 2}, "tensor=2 and context=2 exclude each other", "sequence_parallel=True"),
        ({"context": 2, "pipeline": 2, "accumulation": 2}, "stages send plain tensors", "context=1"),
        ({"tensor": 2, "pipeline": 2, "accumulation": 2, "sequence_parallel": True}, "a stage may begin", "False"),
        ({"sequence_parallel": True}, "needs a tensor axis, but tensor is 1", "tensor=2"),
        ({"parallel_loss": True}, "needs a tensor axis, but tensor is 1", "tensor=2"),
        ({"tensor": 2, "parallel_loss": True, "pipeline": 2, "accumulation": 2}, "a plain tensor", "False"),
        ({"pipeline": 4}, "accumulation is 1, but the pipeline has 4 stages", "accumulation=4"),
        ({"pipeline": 2, "schedule": "interleaved", "accumulation": 2}, "has 4 stages", "accumulation=4"),
        ({"pipeline": 2, "schedule": "interleaved", "accumulation": 5}, "needs a multiple of 2", "accumulation=6"),
        ({"pipeline": 2, "schedule": "zbv", "accumulation": 6, "stages_per_rank": 3}, "2 stages", "stages_per_rank=2"),
        ({"pipeline": 2, "schedule": "zbv", "accumulation": 4, "compile": True}, "into two passes", "interleaved"),
        ({"pipeline": 2, "schedule": "zbv", "accumulation": 4, "shard": 2}, "are silently wrong", "after-backward"),
        ({"pipeline": 2, "accumulation": 2, "split": ("a", "b")}, "names 2 modules, but 2 stages", "except the first"),
        ({"split": ("a",)}, "split names modules, but pipeline is 1", "pipeline=2"),
    ],
)  # fmt: skip
def test_wrong_strategy(fields: dict[str, Any], message: str, hint: str) -> None:
    """What cannot be had is refused where it is written down, with the reason and a way out."""
    with pytest.raises(StrategyError) as caught:
        Strategy(**fields)
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("strategy", "version", "reason", "way_out"),
    [
        (Strategy(shard=2), "2.6.0+cpu", "shards with fully_shard on a CPU", 'reshard="never"'),
        (Strategy(pipeline=2, accumulation=2), "2.6.0", "sends and receives at once on a CPU", 'schedule="gpipe"'),
        (Strategy(context=2), "2.9.0+cu128", "computes with tokens that are cut", "context=1"),
    ],
)
def test_version_that_cannot_do_it(strategy: Strategy, version: str, reason: str, way_out: str) -> None:
    """What an older PyTorch fails at is refused before anything begins, with its version and what to do."""
    import torch

    with pytest.raises(StrategyError) as caught:
        versions.check(strategy, torch.device("cpu"), version)
    assert f"{reason}, and PyTorch {version} cannot" in caught.value.message
    assert way_out in caught.value.hint
    versions.check(strategy, torch.device("cpu"), "2.13.0+cpu")
    versions.check(Strategy(replicate=2), torch.device("cpu"), version)
