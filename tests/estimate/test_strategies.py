"""A rank's log under each strategy: byte for byte by hand, and what holds for every model and number of ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.estimate.logs import MIB, Written, of_model

from echelon.errors import UsageError
from echelon.estimate import choice, replicas, schedule, stages, strategies, timeline
from echelon.estimate.layout import POLICY, Layout, share
from echelon.estimate.log import EventLog, Weight

LAYOUTS = [
    Layout(),
    Layout(replicate=4),
    Layout(replicate=2, accumulation=4),
    Layout(shard=4, reshard="never"),
    Layout(shard=4, reshard="after-backward"),
    Layout(shard=4),
    Layout(shard=2, accumulation=3),
    Layout(shard=4, offload=True),
    Layout(replicate=2, shard=2),
    Layout(tensor=4),
    Layout(tensor=2, replicate=2),
    Layout(pipeline=4, accumulation=8),
    Layout(pipeline=2, accumulation=2, shard=2),
    Layout(checkpointing=True),
    Layout(checkpointing=True, shard=4, accumulation=2),
    Layout(precision="bf16", shard=2),
    Layout(precision=POLICY, shard=4, accumulation=3),
    Layout(optimizer="adam8bit", shard=2),
    Layout(accumulation=8),
    Layout(pipeline=2, accumulation=4, checkpointing=True, tensor=2, replicate=2),
]


def names(layout: Layout) -> str:
    """Name a test."""
    return f"{layout.name} {layout.num_ranks}".replace(" ", "")


def parts_at(log: EventLog, position: int) -> dict[str, int]:
    """Return the live bytes by category after an event."""
    parts: dict[str, int] = {}
    for index in timeline.live_tensors(log, position):
        tensor = log.tensors[index]
        parts[tensor.category] = parts.get(tensor.category, 0) + tensor.num_bytes
    return parts


def between_steps(log: EventLog) -> dict[str, int]:
    """Return what lies on the device when backward has ended and the optimizer begins."""
    return parts_at(log, max(position for position, event in enumerate(log.events) if event == "optimizer"))


@pytest.mark.parametrize("layout", LAYOUTS, ids=names)
def test_every_freed_tensor_was_allocated(layout: Layout) -> None:
    """No strategy frees twice or allocates twice, and only buckets and a pipeline's buffers are left behind."""
    traced = of_model(num_blocks=8, rows=64)
    for place in {0, layout.pipeline // 2, layout.pipeline - 1}:
        live: set[int] = set()
        rank = strategies.rank_log(traced, layout, place=place)
        for event in rank.events:
            if type(event) is int:
                index = event if event >= 0 else -event - 1
                assert (index in live) == (event < 0)
                live ^= {index}
        left = [rank.tensors[index].category for index in live]
        assert not {"gathered", "temporary"} & set(left)
        is_between = 0 < place < layout.pipeline - 1
        num_buffers = layout.accumulation * (1 + is_between) + (place > 0) if layout.pipeline > 1 else 0
        assert left.count("communication") == num_buffers
        assert left.count("input") == 1


def test_one_device_is_the_traced_log() -> None:
    """Without a strategy nothing changes."""
    log = of_model()
    rank = strategies.rank_log(log, Layout())
    assert (list(rank.events), list(rank.tensors)) == (list(log.events), list(log.tensors))


def by_hand() -> EventLog:
    """Return a log of two blocks with one weight each, 100 bytes in 10 rows, and one of 60 bytes outside."""
    log = Written(rows=4, blocks=("layers.0", "layers.1"), modules=("", "layers.0", "layers.1"))
    log.weight("embedding.weight", 60, -1, length=6)
    for block in range(2):
        log.weight(f"layers.{block}.weight", 100, block, length=10)
    gradients: list[int] = []
    for step in range(2):
        log.mark("step")
        log.free(*gradients)
        first = log.new(1000, "activation", grows=True)
        saved = []
        for block in range(2):
            log.mark("enter", block)
            saved.append([log.new(200, "activation", module=f"layers.{block}", grows=True), 0])
            saved[block][1] = log.new(1000, "activation", module=f"layers.{block}", grows=True)
            log.mark("leave", block)
        log.mark("backward")
        for block in (1, 0):
            log.mark("enter backward", block)
            log.free(*reversed(saved[block]))
            gradients.append(log.new(100, "gradient"))
            log.mark("leave backward", block)
        gradients.append(log.new(60, "gradient"))
        gradients = gradients[-3:]
        log.free(first)
        log.mark("optimizer")
        if not step:
            for size in (60, 100, 100):
                log.new(size, "state")
                log.new(size, "state")
    log.mark("end")
    return log.read()


KEPT = [
    (Layout(), {"parameter": 260, "gradient": 260, "state": 520}),
    (Layout(replicate=2), {"parameter": 260, "gradient": 520, "state": 520}),  # DDP's buckets beside them
    (Layout(replicate=2, checkpointing=True), {"parameter": 260, "gradient": 260, "state": 520}),
    (Layout(shard=2, reshard="never"), {"parameter": 260, "gradient": 260, "state": 320}),
    (Layout(shard=2, reshard="after-backward"), {"parameter": 130, "gradient": 130, "state": 260}),
    (Layout(shard=2), {"parameter": 130, "gradient": 130, "state": 260}),
    # 10 rows on 4 ranks are 3 at most, 6 are 2; the reduce-scatter of gradients is padded to elements
    (Layout(shard=4), {"parameter": 80, "gradient": 65, "state": 160}),
    (Layout(replicate=2, shard=2), {"parameter": 130, "gradient": 130, "state": 260}),
    (Layout(shard=2, offload=True), {}),
    (Layout(tensor=2), {"parameter": 160, "gradient": 160, "state": 320}),
    (Layout(pipeline=2, accumulation=2), {"parameter": 160, "gradient": 160, "state": 320, "communication": 2 * 500}),
    (Layout(precision=POLICY, shard=2), {"parameter": 130, "gradient": 130, "state": 260}),
    (Layout(precision="bf16"), {"parameter": 130, "gradient": 130, "state": 260}),
]


@pytest.mark.parametrize(("layout", "kept"), KEPT, ids=[names(layout) + layout.reshard for layout, _ in KEPT])
def test_what_a_rank_keeps(layout: Layout, kept: dict[str, int]) -> None:
    """Weights, gradients and states before the optimizer's step, in bytes."""
    parts = between_steps(strategies.rank_log(by_hand(), layout))
    assert {name: size for name, size in parts.items() if size} == kept


def test_gathered_weights_of_fully_shard() -> None:
    """In the backward of block 1: its weights and the root's are whole, and those of block 0 are on their way."""
    log = strategies.rank_log(by_hand(), Layout(shard=2))
    begin = timeline.last_step(log.events)
    position = list(log.events).index(("enter backward", 1), begin)
    assert parts_at(log, position) == {
        "parameter": 130, "state": 260, "gathered": 60 + 100, "communication": 100, "activation": 500 + 2 * 600,
    }  # fmt: skip


def test_policy_of_fully_shard_halves_what_is_computed() -> None:
    """Weights are gathered and activations kept in 16 bits, shards are not; autocast has halved activations before."""
    layout, log = Layout(shard=2, precision=POLICY), by_hand()
    assert (layout.name, layout.code) == ("FSDP + bf16 policy", 'Strategy(shard=2, precision="bf16")')
    assert not choice.how(layout)
    plain = strategies.memory(log, Layout(shard=2)).messages
    assert strategies.memory(log, layout).messages[0].num_bytes == plain[0].num_bytes // 2
    for half, activations in (("", 250 + 2 * 300), ("autocast", 500 + 2 * 600)):
        rank = strategies.rank_log(log.changed(half=half), layout)
        position = list(rank.events).index(("enter backward", 1), timeline.last_step(rank.events))
        assert parts_at(rank, position) == {
            "parameter": 130, "state": 260, "gathered": 80, "communication": 50, "activation": activations,
        }  # fmt: skip


def test_zero_2_keeps_gathered_weights_until_backward() -> None:
    """At the end of forward all weights are whole."""
    log = strategies.rank_log(by_hand(), Layout(shard=2, reshard="after-backward"))
    position = max(position for position, event in enumerate(log.events) if event == "backward")
    assert parts_at(log, position)["gathered"] == 260


def test_replicas_of_cut_weights_are_copied_too() -> None:
    """On a mesh with one shard fully_shard copies weights as if it gathered them, and keeps them until backward."""
    log = strategies.rank_log(by_hand(), Layout(tensor=2, replicate=2))
    position = max(position for position, event in enumerate(log.events) if event == "backward")
    parts = parts_at(log, position)
    assert (parts["gathered"], "communication" in parts) == (60 + 2 * 50, False)


def test_checkpointing_keeps_outputs() -> None:
    """After forward only the input and the blocks' outputs are live; in a block's backward its own are again."""
    log = strategies.rank_log(by_hand(), Layout(checkpointing=True))
    begin = timeline.last_step(log.events)
    events = list(log.events)
    assert parts_at(log, events.index("backward", begin))["activation"] == 3000
    again = events[events.index(("enter backward", 1), begin) + 1]
    assert log.tensors[again].num_bytes == 200  # type: ignore[call-overload]
    assert timeline.peak(strategies.rank_log(by_hand(), Layout())).num_bytes - 200 == timeline.peak(log).num_bytes


def test_accumulation_adds_to_the_first_gradients() -> None:
    """The second micro-batch has its activations and the gradients of the first; its own are freed one by one."""
    log = strategies.rank_log(by_hand(), Layout(accumulation=2))
    begin = timeline.last_step(log.events)
    second = list(log.events).index("forward", begin)
    assert parts_at(log, second) == {"parameter": 260, "gradient": 260, "state": 520}
    assert between_steps(log) == {"parameter": 260, "gradient": 260, "state": 520}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_data_parallel_accumulation_has_gradients_twice(checkpointing: bool) -> None:
    """Gradients lie beside the buckets: always, or under no_sync until the last backward copies them."""
    log = strategies.rank_log(by_hand(), Layout(replicate=2, accumulation=2, checkpointing=checkpointing))
    second = list(log.events).index("forward", timeline.last_step(log.events))
    assert parts_at(log, second)["gradient"] == 2 * 260


@pytest.mark.parametrize(
    ("layout", "gradients"), [(Layout(shard=2), 260), (Layout(shard=2, reshard="after-backward"), 260)]
)
def test_sharded_accumulation_keeps_whole_gradients(layout: Layout, gradients: int) -> None:
    """Without reduction between micro-batches each rank has all gradients, until the last backward shards them."""
    log = strategies.rank_log(by_hand(), layout.changed(accumulation=2))
    second = list(log.events).index("forward", timeline.last_step(log.events))
    assert parts_at(log, second)["gradient"] == gradients
    assert between_steps(log)["gradient"] == gradients // 2


def test_pipeline_keeps_micro_batches_in_flight() -> None:
    """The first of two stages has two micro-batches in flight, the last has one; buffers hold eight messages."""
    log = of_model(num_blocks=4, rows=8)
    layout = Layout(pipeline=2, accumulation=8)
    first, last = (strategies.rank_log(log, layout, place=place) for place in (0, 1))
    most = [_most(rank, "activation") for rank in (first, last)]
    micro = 4 * MIB // 8
    assert most[0] == 2 * (1 + 2 * 4) * micro
    assert most[1] == (2 * 4 + 2) * micro  # with the logits
    assert [_most(rank, "communication") for rank in (first, last)] == [8 * micro, 9 * micro]


def test_stage_keeps_its_output_until_backward_has_ended() -> None:
    """On one device the logits may be freed before backward; a stage keeps what it returns until then."""
    log = of_model(num_blocks=2, rows=2)
    head = log.modules.index("head")
    of_head = [index for index, tensor in enumerate(log.tensors) if tensor.module == head and tensor.grows]
    logits = of_head[-1]
    events = list(stages.stage(log, range(1, 2), 2).events)
    assert events.index(-logits - 1) == events.index("optimizer", events.index(logits)) - 1


def test_weights_outside_of_blocks_are_where_they_are_used() -> None:
    """A head listed before the blocks is in the last stage; a module that keeps nothing is where it is listed."""
    log = Written(rows=2, blocks=("layers.0", "layers.1"), modules=("", "head", "layers.0", "layers.1"))
    for name, block in (("embedding.weight", -1), ("head.weight", -1), ("layers.0.weight", 0), ("layers.1.weight", 1)):
        log.weight(name, 40, block)
    log.mark("step")
    kept = []
    for block in range(2):
        log.mark("enter", block)
        kept.append(log.new(8, "activation", module=f"layers.{block}", grows=True))
        log.mark("leave", block)
    kept.append(log.new(8, "activation", module="head", grows=True))
    log.mark("backward")
    log.free(*kept)
    log.mark("optimizer")
    log.mark("end")
    parts = [
        [weight.name for weight in stages.stage(log.read(), blocks, 2).weights] for blocks in (range(1), range(1, 2))
    ]
    assert parts == [["embedding.weight", "layers.0.weight"], ["head.weight", "layers.1.weight"]]


def _most(log: EventLog, category: str) -> int:
    live = most = 0
    for event in log.events:
        if type(event) is int:
            tensor = log.tensors[event if event >= 0 else -event - 1]
            live += (tensor.num_bytes if event >= 0 else -tensor.num_bytes) * (tensor.category == category)
            most = max(most, live)
    return most


def test_turns_of_1f1b() -> None:
    """A stage computes ahead as many forwards as there are stages from it on, then one of each in turn."""
    assert schedule.one_forward_one_backward(2, 0, 4) == [
        (True, 0), (True, 1), (False, 0), (True, 2), (False, 1), (False, 2),
    ]  # fmt: skip
    assert schedule.one_forward_one_backward(2, 1, 1) == [(True, 0), (False, 0)]
    assert schedule.accumulation(2) == [(True, 0), (False, 0), (True, 1), (False, 1)]


def test_buckets_of_ddp() -> None:
    """The first bucket is closed at one mebibyte, others at 25; the last holds the rest."""
    assert replicas.bucket_sizes([MIB, 10 * MIB, 20 * MIB, 7]) == [MIB, 30 * MIB, 7]


def test_states_are_dealt_as_zero_redundancy_optimizer_does() -> None:
    """The largest first, each to the rank that has least."""
    assert replicas.dealt([10, 60, 50, 20], 2) == [[1, 0], [2, 3]]


def test_eight_bit_states() -> None:
    """A byte for each value and 4 for each 256; small weights keep 32 bits."""
    log = Written()
    for length in (4096, 4095):
        log.weight(f"{length}", 4 * length, -1)
    log.mark("step")
    log.mark("backward")
    log.mark("optimizer")
    for length in (4096, 4095):
        log.new(4 * length, "state")
    rank = strategies.rank_log(log.read(), Layout(optimizer="adam8bit"))
    assert [tensor.num_bytes for tensor in rank.tensors][2:] == [4096 + 4 * 16, 4 * 4095]


MESSAGES = [
    (Layout(replicate=4), {"all-reduce": 260 * 6 // 4}),
    (Layout(shard=4, reshard="never"), {"all-reduce": 390, "broadcast": 195}),
    (Layout(shard=4, reshard="after-backward"), {"all-gather": 195, "reduce-scatter": 195}),
    (Layout(shard=4), {"all-gather": 460 * 3 // 4, "reduce-scatter": 195}),
    (Layout(shard=2, replicate=2), {"all-gather": 230, "reduce-scatter": 130, "all-reduce": 130}),
    (Layout(tensor=2), {"all-reduce": 4 * 2 * 1000}),
    (Layout(pipeline=2, accumulation=2), {"send": 2 * 1000}),
]


@pytest.mark.parametrize(("layout", "sent"), MESSAGES, ids=[names(layout) + layout.reshard for layout, _ in MESSAGES])
def test_bytes_that_a_rank_sends(layout: Layout, sent: dict[str, int]) -> None:
    """The operations are those of docs/strategies; the bytes are those of messages that go around a ring."""
    messages = strategies.memory(by_hand(), layout).messages
    assert {message.operation: message.sent_bytes for message in messages} == sent


WRONG = [
    ({"precision": POLICY}, "is a policy of fully_shard"),
    ({"shard": 0}, "shard is 0"),
    ({"reshard": "sometimes"}, "the choices are always"),
    ({"shard": 2, "reshard": "never", "tensor": 2}, "ZeRO-1"),
    ({"offload": True}, "offload needs"),
    ({"pipeline": 4, "accumulation": 2}, "the pipeline has 4 stages"),
]


@pytest.mark.parametrize(("values", "words"), WRONG, ids=[words for _, words in WRONG])
def test_wrong_layout_is_refused(values: dict[str, object], words: str) -> None:
    """The message names the values that contradict each other."""
    with pytest.raises(UsageError, match=words):
        Layout(**values)  # type: ignore[arg-type]


def test_rows_and_blocks_have_to_suffice() -> None:
    """A rank needs a row, and a stage a block."""
    with pytest.raises(UsageError, match="a batch of 4 rows cannot be cut into 8 ranks × 1 micro-batches"):
        strategies.memory(by_hand(), Layout(replicate=8))
    with pytest.raises(UsageError, match="3 stages, but the model has only 2 blocks"):
        strategies.memory(by_hand(), Layout(pipeline=3, accumulation=3))


def test_unknown_rows_are_said() -> None:
    """Without rows a rank has the whole batch, and a note says so."""
    result = strategies.memory(by_hand().changed(rows=0), Layout(replicate=2))
    assert "the rows of a batch are unknown" in result.notes[0]


@pytest.mark.parametrize("layout", LAYOUTS, ids=names)
def test_more_rows_never_take_less(layout: Layout) -> None:
    """The peak grows with the batch, and what is reserved is at least what is allocated."""
    log = of_model(num_blocks=8, rows=64, activation_bytes=16 * MIB)
    before = 0
    for rows in (16, 24, 64, 128, 1000):
        result = strategies.memory(log, layout.changed(rows=rows))
        assert before <= result.peak.num_bytes <= result.allocated_bytes <= result.reserved_bytes
        before = result.peak.num_bytes


MODELS = st.builds(
    of_model,
    num_blocks=st.integers(1, 5),
    block_bytes=st.integers(1, 40).map(lambda number: number * 40_004),
    outside_bytes=st.integers(1, 3 * MIB),
    activation_bytes=st.integers(1, 4 * MIB),
    num_activations=st.integers(1, 4),
    rows=st.just(64),
    num_states=st.integers(0, 3),
    num_weights=st.integers(1, 5),
)


@settings(deadline=None, max_examples=40)
@given(log=MODELS, num_ranks=st.integers(2, 9), reshard=st.sampled_from(["always", "after-backward", "never"]))
def test_ranks_together_hold_the_whole(log: EventLog, num_ranks: int, reshard: str) -> None:
    """So many ranks never hold less in sum than one device does, of weights, gradients and states."""
    one = between_steps(strategies.rank_log(log, Layout()))
    rank = between_steps(strategies.rank_log(log, Layout(shard=num_ranks, reshard=reshard)))
    for category in ("parameter", "gradient", "state"):
        assert num_ranks * rank.get(category, 0) >= one.get(category, 0)
        assert rank.get(category, 0) <= one.get(category, 0) + 4 * 30


@settings(deadline=None, max_examples=30)
@given(log=MODELS, data=st.data())
def test_checkpointing_and_stages_keep_every_byte(log: EventLog, data: st.DataObject) -> None:
    """Checkpointing holds no more after forward, and the stages of a pipeline have all weights, each once."""
    rank = strategies.rank_log(log, Layout(checkpointing=True))
    plain, kept = (
        parts_at(each, max(position for position, event in enumerate(each.events) if event == "backward"))
        for each in (log, rank)
    )
    assert kept["activation"] <= plain["activation"]
    count = data.draw(st.integers(1, len(log.blocks)))
    weights = [weight for blocks in stages.cut(log, count) for weight in stages.stage(log, blocks, 1).weights]
    assert weights == list(log.weights)


def blocks_of(sizes: list[int]) -> EventLog:
    """Return a log of blocks with one weight each."""
    weights = tuple(Weight(name=str(index), num_bytes=size, block=index, tensor=0) for index, size in enumerate(sizes))
    return EventLog(torch="", device="", rows=1, blocks=tuple(map(str, range(len(sizes)))), weights=weights)


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=7), data=st.data())
def test_stages_are_balanced(sizes: list[int], data: st.DataObject) -> None:
    """No other cut has a smaller largest stage."""
    count = data.draw(st.integers(1, len(sizes)))
    result = stages.cut(blocks_of(sizes), count)
    assert [block for stage in result for block in stage] == list(range(len(sizes)))
    assert len(result) == count
    assert max(sum(sizes[block] for block in stage) for stage in result) == min(_largest(sizes, count))


def _largest(sizes: list[int], count: int) -> Iterator[int]:
    if count == 1:
        yield sum(sizes)
        return
    for end in range(1, len(sizes) - count + 2):
        for rest in _largest(sizes[end:], count - 1):
            yield max(sum(sizes[:end]), rest)


@given(num_bytes=st.integers(0, 10**6), num_ranks=st.integers(1, 64))
def test_share_is_rounded_up(num_bytes: int, num_ranks: int) -> None:
    """All parts together hold the whole, and the largest is at most one larger than the mean."""
    assert num_bytes <= num_ranks * share(num_bytes, num_ranks) < num_bytes + num_ranks


COMBINED = [
    (4, 4, [(4, 1, 1), (1, 4, 1), (2, 1, 2), (2, 2, 1)]),
    (8, 8, [(8, 1, 1), (2, 1, 4), (2, 4, 1)]),  # eight stages have too few blocks
    (8, 4, [(4, 1, 2), (4, 2, 1)]),
    (2, 2, [(2, 1, 1), (1, 2, 1)]),
    (3, 3, [(3, 1, 1), (1, 3, 1)]),
]


@pytest.mark.parametrize(("num_ranks", "per_node", "expected"), COMBINED)
def test_tensor_beside_other_axes(num_ranks: int, per_node: int, expected: list[tuple[int, int, int]]) -> None:
    """Tensor stays within a node; beside it are shards, or stages of a pipeline, and each has its own estimate."""
    log = of_model(num_blocks=4, rows=16)
    layouts = choice.of_several(log, num_ranks, per_node)
    axes = [(one.tensor, one.pipeline, one.shard) for one in layouts if one.tensor > 1 or one.pipeline > 1]
    assert axes == expected
    assert len({(one.name, one.reshard) for one in layouts}) == len(layouts)
    assert all(strategies.memory(log, layout).peak.num_bytes > 0 for layout in layouts)
