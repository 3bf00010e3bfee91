"""Published numbers of activations: Korthikanti et al., Reducing Activation Recomputation (arXiv:2205.05198).

The values of megatron.csv are those of figures 1 and 7, as github.com/calculon-ai/calculon has them
(calculon/llm/validation.py at caa4b11f8fe1). Nothing here was fitted to them: a layer is written down tensor by tensor
as section 4.1 of the paper lists what it saves, and each number follows by a replay.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tests.estimate.logs import Written
from tests.estimate.test_strategies import parts_at

from echelon.estimate import strategies, timeline
from echelon.estimate.layout import Layout
from echelon.estimate.log import EventLog

GIB = 1 << 30
BYTES_OF_A_PARAMETER = 18
"""fp16 weight, fp32 gradient, weight, and two states of Adam."""
INTERLEAVED = {"gpt3-175B": 3, "turing-530B": 3}
"""Stages of a rank, table 3: such a schedule holds 1 + (p-1)/(p·m) as many activations as 1F1B."""
ROWS = list(csv.DictReader((Path(__file__).parent / "megatron.csv").open(encoding="utf-8")))
LAYER = (
    # module, bytes for each element of a hidden state, and for each score of an attention head
    ("input_layernorm", 2, 0),
    ("self_attention.query_key", 4, 0),
    ("self_attention.softmax", 0, 2),
    ("self_attention.attn_dropout", 0, 3),  # the mask, and the result
    ("self_attention.value", 2, 0),
    ("self_attention.context", 2, 0),
    ("self_attention.resid_dropout", 1, 0),
    ("", 2, 0),  # the input of the second norm: the residual sum
    ("post_attention_layernorm", 2, 0),
    ("mlp.dense_h_to_4h", 8, 0),
    ("mlp.gelu", 8, 0),
    ("mlp.dropout", 1, 0),
    ("", 2, 0),  # the block's output: the input of the next block's first norm
)


def of(row: dict[str, str], quantity: str, recompute: str) -> float:
    """Return another value of the same model."""
    same = (each for each in ROWS if each["model"] == row["model"] and each["quantity"] == quantity)
    return float(next(each["value"] for each in same if each["recompute"] == recompute))


def log_of(row: dict[str, str]) -> EventLog:
    """Return the log of a step of this model with one micro-batch, whose blocks have one matrix each."""
    layers, hidden, heads, length = (int(row[name]) for name in ("layers", "hidden", "heads", "seq_len"))
    rows = int(row["micro_batch"])
    states, scores = length * rows * hidden, heads * length * length * rows
    names = tuple(f"layers.{layer}" for layer in range(layers))
    modules = ["", "embedding"]
    for name in names:
        modules += [name, *(f"{name}.{module}" for module, _, _ in LAYER if module)]
    log = Written(rows=rows, blocks=names, modules=tuple(dict.fromkeys(modules)))
    for layer, name in enumerate(names):
        log.weight(f"{name}.weight", 2 * 12 * hidden * hidden, layer)
    log.mark("step")
    first = log.new(2 * states, "activation", module="embedding", grows=True)
    saved = []
    for layer, name in enumerate(names):
        log.mark("enter", layer)
        saved.append(
            [
                log.new(
                    number * states + of_score * scores,
                    "activation",
                    module=f"{name}.{module}" if module else name,
                    grows=True,
                )
                for module, number, of_score in LAYER
            ]
        )
        log.mark("leave", layer)
    log.mark("backward")
    for layer in reversed(range(layers)):
        log.mark("enter backward", layer)
        log.free(*reversed(saved[layer]))
        log.mark("leave backward", layer)
    log.free(first)
    log.mark("optimizer")
    log.mark("end")
    return log.read()


def layout_of(row: dict[str, str]) -> Layout:
    """Return the axes of a row, with as many micro-batches as there are stages."""
    stages = int(row["pp"])
    return Layout(tensor=int(row["tp"]), pipeline=stages, accumulation=stages, rows=int(row["micro_batch"]) * stages)


def most_of_activations(log: EventLog) -> int:
    """Return the peak of activations."""
    live = most = 0
    for event in log.events:
        if type(event) is int:
            tensor = log.tensors[event if event >= 0 else -event - 1]
            if tensor.category == "activation":
                live += tensor.num_bytes if event >= 0 else -tensor.num_bytes
                most = max(most, live)
    return most


PLAIN = [row for row in ROWS if (row["quantity"], row["recompute"]) == ("activations GiB", "none")]
FULL = [row for row in ROWS if (row["quantity"], row["recompute"]) == ("activation memory relative to none", "full")]
WEIGHTS = [row for row in ROWS if row["quantity"] == "params+optimizer GiB"]


def test_rows_are_all_there() -> None:
    """Four models, with all three numbers."""
    assert [len(rows) for rows in (PLAIN, FULL, WEIGHTS)] == [4, 4, 4]


@pytest.mark.parametrize("row", PLAIN, ids=lambda row: row["model"])
def test_activations_without_recomputation(row: dict[str, str]) -> None:
    """Figure 1; beside them the first stage keeps the output of its last block for each micro-batch in flight."""
    stages, interleaved = int(row["pp"]), INTERLEAVED.get(row["model"], 1)
    factor = 1 + (stages - 1) / (stages * interleaved) if interleaved > 1 else 1.0
    outputs = stages * 2 * int(row["seq_len"]) * int(row["micro_batch"]) * int(row["hidden"])
    result = most_of_activations(strategies.rank_log(log_of(row), layout_of(row)))
    assert (result - outputs) / GIB == pytest.approx(float(row["value"]) / factor, rel=1e-6)


@pytest.mark.parametrize("row", FULL, ids=lambda row: row["model"])
def test_activations_with_full_recomputation(row: dict[str, str]) -> None:
    """Figure 7: what is kept until backward, relative to what is kept without; the figure has more than the layers."""
    log = log_of(row)
    kept = []
    for checkpointing in (False, True):
        rank = strategies.rank_log(log, Layout(tensor=int(row["tp"]), checkpointing=checkpointing))
        position = max(position for position, event in enumerate(rank.events) if event == "backward")
        kept.append(parts_at(rank, position)["activation"])
    outputs = 2 * int(row["seq_len"]) * int(row["micro_batch"]) * int(row["hidden"])
    assert 100 * (kept[1] - outputs) / (kept[0] - outputs) == pytest.approx(float(row["value"]), rel=0.02)


@pytest.mark.parametrize("row", WEIGHTS, ids=lambda row: row["model"])
def test_weights_and_states_of_a_rank(row: dict[str, str]) -> None:
    """Figure 1: matrices cut along the tensor axis, and layers along the pipeline."""
    rank = strategies.rank_log(log_of(row), layout_of(row))
    begin = timeline.last_step(rank.events)
    weights = parts_at(rank, begin)["parameter"]
    assert weights * BYTES_OF_A_PARAMETER / 2 / GIB == pytest.approx(float(row["value"]), rel=1e-3)
