"""The parts of a step: precision, optimizers, rows that each rank loads, random numbers, and a loop of one's own."""

from typing import Any

import pytest
import torch
from tests.tiers import some
from tests.train.strategies import proving, ranks, test_equal, training

from echelon.train import optimizer_kinds
from echelon.train.strategies import spreading
from echelon.train.strategies.strategy import Strategy

SGD = [
    (2, Strategy(shard=2, accumulation=2)),
    (2, Strategy(shard=2, reshard="never")),
    (2, Strategy(tensor=2)),
    (2, Strategy(pipeline=2, accumulation=2)),
    (2, Strategy(context=2, attention="ring")),
]


@pytest.mark.tier("all")
@pytest.mark.parametrize(("num_ranks", "strategy"), SGD, ids=test_equal.name_of)
def test_sgd_without_clipping(num_ranks: int, strategy: Strategy) -> None:
    """Where AdamW hides a factor on a gradient, SGD shows it, and so does a norm that limits nothing."""
    found = proving.train(num_ranks, "gpt", strategy, "sgd", 0.0)
    test_equal.compare(found, test_equal.alone("gpt", "sgd", 0.0))


@pytest.mark.tier("all")
@pytest.mark.parametrize("most_at_once", some([spreading.MOST_AT_ONCE, 0], 2))
def test_every_optimizer(most_at_once: int) -> None:
    """All that compute each element by itself, and so step on what a rank holds, on all weights at once or in turn."""
    names = [kind.__name__ for kind in optimizer_kinds.ELEMENTWISE]
    expected = ranks.run(1, training.by_optimizer, names, None)[0]
    for found in ranks.run(2, training.by_optimizer, names, Strategy(shard=2), most_at_once):
        assert found == {name: pytest.approx(losses, rel=2e-6) for name, losses in expected.items()}


@pytest.mark.parametrize(
    "settings", some([{"amsgrad": True, "maximize": True}, {"fused": True}, {"lr": torch.tensor(1e-2)}], 3)
)
def test_settings_of_an_optimizer(settings: dict[str, Any]) -> None:
    """What else one may ask of AdamW."""
    expected = ranks.run(1, training.with_settings, settings, None)[0]
    for found in ranks.run(2, training.with_settings, settings, Strategy(shard=2)):
        assert found == pytest.approx(expected, rel=2e-6)


def test_optimizer_that_is_pickled() -> None:
    """As the optimizers of PyTorch can be."""
    assert ranks.run(2, training.read_again, Strategy(shard=2)) == [True, True]


def test_optimizer_that_needs_whole_rows() -> None:
    """Stages have whole weights."""
    expected = ranks.run(1, training.by_optimizer, ["Adafactor"], None)[0]
    for found in ranks.run(2, training.by_optimizer, ["Adafactor"], Strategy(pipeline=2, accumulation=2)):
        assert found["Adafactor"] == pytest.approx(expected["Adafactor"], rel=2e-6)


def test_optimizer_that_asks_for_the_loss() -> None:
    """As often as it likes."""
    expected = ranks.run(1, training.with_closure, None)[0]
    for found in ranks.run(2, training.with_closure, Strategy(replicate=2)):
        assert found == pytest.approx(expected, rel=2e-6)


PRECISION = [
    ("bf16", 1, {"accumulation": 2}),
    ("bf16", 2, {"replicate": 2}),
    ("fp16", 2, {"replicate": 2}),
    ("bf16", 2, {"shard": 2}),
    ("fp16", 2, {"shard": 2}),
    ("bf16", 2, {"tensor": 2}),
    ("bf16", 2, {"pipeline": 2, "accumulation": 2}),
    ("fp16", 2, {"pipeline": 2, "accumulation": 2}),
    ("bf16", 2, {"context": 2}),
]


@pytest.mark.parametrize(("precision", "num_ranks", "axes"), some(PRECISION, 3, first=3), ids=str)
def test_sixteen_bits(num_ranks: int, axes: dict[str, int], precision: str) -> None:
    """As near to one device in 32 bits as 16 bits are; weights and optimizer states stay in 32."""
    strategy = Strategy(**axes, precision=precision)  # type: ignore[arg-type]
    found = proving.train(num_ranks, "gpt", strategy, "adamw", 0.5)
    expected = test_equal.alone("gpt", "adamw", 0.5)
    assert found[0]["losses"] == pytest.approx(expected["losses"], rel=5e-3)
    assert found[0]["losses"] != pytest.approx(expected["losses"], rel=1e-7)  # it was really 16
    assert found[0]["norms"] == pytest.approx(expected["norms"], rel=3e-2)
    assert all(one.dtype is torch.float32 for one in found[0]["model"].values())


@pytest.mark.parametrize("axes", some([{"replicate": 2}, {"shard": 2}, {"pipeline": 2, "accumulation": 2}], 2), ids=str)
def test_step_in_which_fp16_overflows_is_lost_on_all_ranks(axes: dict[str, int]) -> None:
    """One rank alone sees the infinity, and all leave the step out and halve the scale."""
    for lost, scale, is_changed in ranks.run(2, training.overflow, Strategy(**axes, precision="fp16")):  # type: ignore[arg-type]
        assert lost == [True, False]
        assert scale == training.TOO_LARGE / 2
        assert is_changed == [False, True]


LOADED = [
    (1, Strategy()),
    (2, Strategy(shard=2, accumulation=2)),
    (2, Strategy(pipeline=2, accumulation=2)),
    (2, Strategy(context=2)),
    (4, Strategy(replicate=2, tensor=2)),
]


@pytest.mark.parametrize(("num_ranks", "strategy"), some(LOADED, 5, first=1), ids=test_equal.name_of)
def test_each_rank_loads_its_own_rows(num_ranks: int, strategy: Strategy) -> None:
    """A shuffled loader, whose targets are not all to be learned: the mean is over the tokens of all ranks."""
    expected = training.alone_from_loader()
    for losses, num_rows in ranks.run(num_ranks, training.from_loader, strategy):
        assert losses == pytest.approx(expected, rel=2e-6)
        assert num_rows == 8 // strategy.num_data


@pytest.mark.parametrize(
    "strategy", [Strategy(replicate=2), Strategy(pipeline=2, accumulation=2)], ids=test_equal.name_of
)
@pytest.mark.parametrize("kind", ["padding", "weights", "pairs"])
def test_loss_that_is_another_mean_is_refused(kind: str, strategy: Strategy) -> None:
    """Targets that are left out by a rule of the loss's own, classes that weigh more, samples that are compared."""
    found = ranks.run(2, training.other_mean, kind, strategy, False)
    assert any("the loss is no mean over" in said and "count=" in way_out for said, way_out in found)


def test_loss_with_its_count_is_that_of_one_device() -> None:
    """What is a mean over the targets that are not 0 is so over all ranks, once that is said."""
    expected = ranks.run(1, training.other_mean, "padding", Strategy(), True)[0]
    for found in ranks.run(2, training.other_mean, "padding", Strategy(replicate=2), True):
        assert float(found[0]) == pytest.approx(float(expected[0]), rel=2e-6)


EMPTY = [(2, Strategy(shard=2)), (2, Strategy(pipeline=2, accumulation=2)), (2, Strategy(context=2, accumulation=2))]


@pytest.mark.parametrize(("num_ranks", "strategy"), some(EMPTY, 3, first=2), ids=test_equal.name_of)
def test_rows_without_any_target(num_ranks: int, strategy: Strategy) -> None:
    """Half of the rows have nothing to be learned: their mean is no number, and the whole batch's is one."""
    expected = ranks.run(1, training.half_empty, Strategy())[0]
    assert expected[0] == expected[0]
    for losses in ranks.run(num_ranks, training.half_empty, strategy):
        assert losses == pytest.approx(expected, rel=2e-6)


LOOPS = [(2, Strategy(replicate=2)), (2, Strategy(shard=2)), (4, Strategy(replicate=2, shard=2)), (1, Strategy())]


@pytest.mark.parametrize(("num_ranks", "strategy"), some(LOOPS, 4), ids=test_equal.name_of)
def test_loop_of_ones_own(num_ranks: int, strategy: Strategy) -> None:
    """With the data axes alone, run.loader() and the loop that one had go on as they are."""
    for losses in ranks.run(num_ranks, training.own_loop, strategy):
        assert losses == pytest.approx(training.alone_from_loader(), rel=2e-6)


def test_dropout_is_equal_where_ranks_compute_the_same() -> None:
    """Ranks of the tensor axis drop the same, so that their copies stay equal; replicas have other rows, and others."""
    found = ranks.run(4, training.dropped, Strategy(replicate=2, tensor=2))
    assert torch.equal(found[0]["output"], found[1]["output"])
    assert torch.equal(found[2]["output"], found[3]["output"])
    assert not torch.equal(found[0]["output"], found[2]["output"])
    assert all(torch.equal(found[0]["norm"], one["norm"]) for one in found)
    assert all(one["common"] == found[0]["common"] for one in found)


def test_picture_shows_what_lies_where() -> None:
    """Rows and columns of each weight on each rank, as they were really placed."""
    found = ranks.run(4, training.picture, Strategy(shard=2, tensor=2))
    assert len(set(found)) == 1
    rows = {
        line.split("  ")[0]: [cell.strip() for cell in line.split("  ") if cell.strip()]
        for line in found[0].splitlines()
    }
    assert rows["weight"] == ["weight", "shape", "rank 0", "rank 1", "rank 2", "rank 3"]
    assert rows["wte.weight"][1:] == ["32 × 32", "[0:16, :]", "[0:16, :]", "[16:32, :]", "[16:32, :]"]
    name = "h.0.mlp.c_proj.weight"  # cut by columns along the tensor axis, by rows along shard
    assert rows[name][1:] == ["32 × 128", "[0:16, 0:64]", "[0:16, 64:128]", "[16:32, 0:64]", "[16:32, 64:128]"]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("num_keys", [4, 8, 12])
def test_attention_to_other_tokens_than_its_own(num_keys: int, is_causal: bool) -> None:
    """Where keys are of another sequence than queries, fewer or more of them, all are looked at."""
    for off, gradient_off in ranks.run(2, training.cross, 8, num_keys, is_causal):
        assert off < 1e-6
        assert gradient_off < 1e-5


WRONG: list[tuple[int, str, Strategy, dict[str, Any], str, str]] = [
    (2, "gpt", Strategy(), {}, "= 1, but the number of ranks is 2", "Strategy(replicate=2)"),
    (2, "heads", Strategy(tensor=2), {}, "h.0.attn.n_head is 1, which is not a multiple", "tensor=1"),
    (2, "gpt", Strategy(pipeline=2, accumulation=2), {"sample": None}, "needs a batch to trace", "sample=inputs"),
    (2, "short", Strategy(pipeline=2, accumulation=4, schedule="zbv"), {}, "but Gpt has only 2", "pipeline=1"),
    (2, "lacks", Strategy(pipeline=2, accumulation=4, schedule="dualpipev"), {}, f"PyTorch {torch.__version__}", "1f"),
    (2, "gpt", Strategy(pipeline=2, accumulation=2, split=("h.9",)), {}, "split names h.9", "split=('h.1',)"),
    (2, "plain", Strategy(shard=2), {}, "needs blocks that repeat", "blocks=['0', '2']"),
    (2, "plain", Strategy(shard=2), {"blocks": ["7"]}, "has no module '7'", "one of 0, 1, 2"),
    (2, "cnn", Strategy(tensor=2), {}, "recognizes no attention and no MLP", "plan={"),
    (2, "gpt", Strategy(tensor=2), {"plan": {"h.*.mlp.fc": "colwise"}}, "has no such module", "one of wte"),
    (2, "gpt", Strategy(tensor=2), {"plan": {"h.*.mlp.c_fc": "columns"}}, "the choices are colwise", "ParallelStyle"),
    (2, "norm", Strategy(replicate=2), {}, "1 is a BatchNorm", "GroupNorm"),
    (2, "tied", Strategy(pipeline=2, accumulation=2), {}, "wte.weight and lm_head.weight are one", "pipeline=1"),
    (2, "tied", Strategy(tensor=2, parallel_loss=True), {}, "is also wte.weight", "=False"),
    (2, "tied", Strategy(tensor=2), {"plan": {"lm_head": "colwise_rep"}}, "one shared tensor, but", "plan="),
    (2, "in-place", Strategy(pipeline=2, accumulation=2), {}, "the output of its block h.2 in place", "x = x + y"),
    (2, "among", Strategy(pipeline=2, accumulation=2), {}, "Own uses its end between the blocks", "--scale pipeline"),
    (2, "both", Strategy(pipeline=2, accumulation=2), {}, "its start both before and after", "--scale pipeline"),
    (2, "told", Strategy(pipeline=2, accumulation=2), {}, "uses wte, start after the", "--scale pipeline"),
    (2, "told-own", Strategy(pipeline=2, accumulation=2), {}, "uses start after the", "--scale pipeline"),
    (2, "LBFGS", Strategy(shard=2), {}, "LBFGS computes with all weights as one vector", "AdamW"),
    (2, "LBFGS", Strategy(shard=2, reshard="never"), {}, "LBFGS computes with all weights as one vector", "AdamW"),
    (2, "LBFGS", Strategy(replicate=2), {}, "LBFGS computes the loss several times a step", "trained.backward("),
    (2, "Adafactor", Strategy(tensor=2), {}, "Adafactor computes with means over rows and columns", "AdamW"),
    (2, "apart", Strategy(replicate=2), {}, "rank 1 got another batch than rank 0", "rows=True"),
    (2, "apart", Strategy(tensor=2), {}, "rank 1 got another batch than rank 0", "torch.manual_seed(0)"),
    (2, "views", Strategy(replicate=2), {}, "the batch comes from run.loader()", "trained.loader(loader)"),
    (2, "loop", Strategy(tensor=2), {}, "gives each of 2 ranks its own rows", "trained.step("),
    (2, "dropout", Strategy(context=2), {}, "no random numbers for cut tensors on a CPU", "set dropout to 0"),
    (2, "odd", Strategy(context=2), {}, "7 tokens, which is not a multiple of the context axis, 2", "context=1"),
    (2, "odd", Strategy(pipeline=2, accumulation=4), {}, "3 rows of the batch, but accumulation is 4", "of 4 rows"),
    (2, "gpt", Strategy(shard=2), {"state": {"wte.weight": torch.zeros(2)}}, "the state lacks wpe.weight", "model"),
    (2, "meta", Strategy(shard=2), {}, "has no method that initializes its weights", "initialize="),
]  # fmt: skip


@pytest.mark.parametrize(
    "case", some(WRONG, 6), ids=lambda case: f"{case[1]}-{test_equal.name_of(case[2])}-{case[4][:20]}"
)
def test_wrong_for_this_model(case: Any) -> None:
    """One clear error on every rank, that names the thing and the way out, and nothing hangs."""
    num_ranks, kind, strategy, wishes, message, hint = case
    for said, way_out in ranks.run(num_ranks, training.refused, kind, strategy, wishes):
        assert message in said
        assert hint in way_out
