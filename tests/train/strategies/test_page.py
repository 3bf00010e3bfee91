"""What docs/strategies says of memory and communication is counted: each formula of its tables is evaluated."""

import functools
import re
from pathlib import Path
from typing import Any

import pytest
from tests.tiers import some
from tests.train.strategies import counting, models, ranks

from echelon.train.strategies import strategy as strategies
from echelon.train.strategies.strategy import Strategy

PAGES = sorted((Path(__file__).parents[3] / "docs" / "strategies").glob("*.md"))
OVERVIEW = Path(__file__).parents[3] / "docs" / "strategies.md"
SENT = re.compile(r"^\| `(Strategy\([^`]*\))` \| ([a-z-]+) \| `([^`]+)` \|", re.M)
KEPT = re.compile(r"^\| `(Strategy\([^`]*\))` \| `([^`]+)` \| `([^`]+)` \| `([^`]+)` \|$", re.M)
CUT_BY_ROWS = re.compile(
    r"attn\.c_attn\.|mlp\.c_fc\.|attn\.c_proj\.weight|mlp\.c_proj\.weight|[qkvo]_proj|(up|gate|down)_proj"
)


def kind_of(strategy: Strategy) -> str:
    """Return the model on which a row is counted: for the tensor axis one whose matrices are a part each."""
    return "llama" if strategy.tensor > 1 else "gpt"


@functools.cache
def counted(strategy: Strategy) -> list[Any]:
    return ranks.run(strategy.num_ranks, counting.count, kind_of(strategy), strategy)


def names(strategy: Strategy) -> dict[str, int]:
    """Return what the letters of the page stand for."""
    weights = dict(models.make(kind_of(strategy)).named_parameters())
    in_blocks = sum(one.numel() for name, one in weights.items() if re.match(r"(h|layers)\.", name))
    cut = sum(one.numel() for name, one in weights.items() if CUT_BY_ROWS.search(name))
    rows = models.NUM_ROWS // strategy.num_data
    return {
        "W": sum(one.numel() for one in weights.values()),
        "B": in_blocks,
        "T": cut,
        "L": 2 if kind_of(strategy) == "llama" else 4,
        "A": rows * models.LENGTH * models.WIDTH,
        "D": models.WIDTH,
        "r": strategy.replicate,
        "s": strategy.shard,
        "t": strategy.tensor,
        "p": strategy.pipeline,
        "c": strategy.context,
    }


def value_of(formula: str, strategy: Strategy) -> float:
    return float(eval(formula.replace("·", "*").replace("−", "-"), {}, names(strategy)))


def rows_of(pattern: re.Pattern[str]) -> list[tuple[str, ...]]:
    return [found.groups() for page in PAGES for found in pattern.finditer(page.read_text("utf-8"))]


@pytest.mark.parametrize(("code", "message", "formula"), some(rows_of(SENT), 18))
def test_communication(code: str, message: str, formula: str) -> None:
    """A rank gives so many elements to this kind of message in a step."""
    strategy = eval(code)
    found = [one["sent"].get(message.replace("reduce-scatter", "all-reduce"), 0) for one in counted(strategy)]
    total = sum(value_of(row[2], strategy) for row in rows_of(SENT) if row[0] == code and same(row[1], message))
    assert sum(found) / len(found) == pytest.approx(total, rel=1e-6), counted(strategy)[0]["sent"]


def same(one: str, other: str) -> bool:
    """Tell whether gloo carries two kinds of message by the same: it has no reduce-scatter, and all-reduces instead."""
    return len({one, other} | {"all-reduce", "reduce-scatter"}) == 2 or one == other


@pytest.mark.parametrize(("code", "weights", "gradients", "states"), some(rows_of(KEPT), 3))
def test_memory(code: str, weights: str, gradients: str, states: str) -> None:
    """So many elements lie on a rank, on the average of all ranks."""
    strategy = eval(code)
    for word, formula in (("weights", weights), ("gradients", gradients), ("states", states)):
        found = [one["kept"][word] for one in counted(strategy)]
        assert sum(found) / len(found) == pytest.approx(value_of(formula, strategy), rel=1e-6), word


def test_every_strategy_has_its_rows_and_its_words() -> None:
    """Each axis, stage of ZeRO and schedule is on a page, in a table or by its word."""
    text = "".join(page.read_text("utf-8") for page in (OVERVIEW, *PAGES))
    counted_ones = [eval(row[0]) for row in rows_of(SENT)]
    for axis in strategies.AXES:
        assert any(getattr(one, axis) > 1 for one in counted_ones), axis
    for word in (*strategies.SCHEDULES, *strategies.RESHARD, *strategies.CHECKPOINTING, *strategies.ATTENTIONS):
        assert f"`{word}`" in text or f'"{word}"' in text, word
    for field in Strategy.__dataclass_fields__:
        assert f"`{field}`" in text or f"{field}=" in text, field
