"""Verdicts as intervals, the fewest ranks, the largest batch, advice, and the choice of a strategy."""

from __future__ import annotations

import dataclasses
import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.estimate.logs import MIB, Written, of_model

from echelon.errors import UsageError
from echelon.estimate import choice, devices, verdict
from echelon.estimate.advice import _changes, advice, most_of_loss, with_chunked_loss
from echelon.estimate.choice import choose
from echelon.estimate.devices import Device, overhead
from echelon.estimate.layout import Layout
from echelon.estimate.log import EventLog
from echelon.estimate.strategies import memory
from echelon.estimate.verdict import CLOSE, FITS, FITS_NOT, fewest, judge, largest_batch

GIB = 1 << 30


@functools.cache
def small() -> EventLog:
    """Return the log of a model of 160 MiB with two states, and of activations of 2.6 GiB."""
    return of_model(num_blocks=4, block_bytes=32 * MIB, outside_bytes=16 * MIB, activation_bytes=128 * MIB)


def device(memory_bytes: int, chip: str = "A100") -> Device:
    """Return a device of any size."""
    return Device(chip=chip, memory_bytes=memory_bytes)


CHIPS = [
    ("A100", "nvidia"), ("NVIDIA A100-SXM4-80GB", "nvidia"), ("NVIDIA H200", "hopper"), ("GH200", "hopper"),
    ("NVIDIA H100 80GB HBM3", "hopper"), ("AMD Instinct MI250X", "amd"), ("MI300X", "amd"), ("B200", "blackwell"),
    ("L4", "nvidia"), ("L40S", "nvidia"), ("Quadro RTX 6000", "nvidia"), ("Gaudi 3", "unknown"), ("", "unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("chip", "family"), CHIPS)
def test_family_of_a_chip(chip: str, family: str) -> None:
    """The names of machine files and of torch.cuda.get_device_name() lead to the same facts."""
    assert device(GIB, chip).family == family


KINDS = [devices.CONTEXT, devices.LIBRARIES, devices.COMMUNICATOR, devices.WORKSPACE, devices.HIDDEN]


@pytest.mark.parametrize("kind", KINDS)
def test_each_fact_is_an_interval_with_a_source(kind: str) -> None:
    """Every family has one; a device that nobody knows gets an interval around all of them."""
    unknown = overhead(device(GIB, "Gaudi 3"), kind)
    for chip in ("A100", "H200", "B200", "MI250X"):
        known = overhead(device(GIB, chip), kind)
        assert unknown.low_bytes <= known.low_bytes <= known.high_bytes <= unknown.high_bytes
        assert "#" in known.source or "peaks.jsonl" in known.source
    assert "unknown" in unknown.source
    assert overhead(device(GIB), kind, number=3).high_bytes == 3 * overhead(device(GIB), kind).high_bytes


def test_older_stacks_are_within_the_interval() -> None:
    """The contexts of stacks that load all kernels at once leave room for the allowance for libraries."""
    for chip, measured in (("RTX 3090", 1_687_000_000), ("V100", 1_006 << 20)):
        outside = [overhead(device(GIB, chip), kind).high_bytes for kind in (devices.CONTEXT, devices.LIBRARIES)]
        assert measured + int(0.7 * GIB) <= sum(outside)
    assert overhead(device(GIB, "H200"), devices.LIBRARIES).high_bytes == 0


def test_device_without_memory_is_refused() -> None:
    """The memory is named."""
    with pytest.raises(UsageError, match="the memory of A100 is 0 bytes"):
        device(0)


def test_answers_by_the_interval() -> None:
    """Below the interval a training does not fit, above it it does, and in it nobody knows."""
    result = judge(small(), Layout(), device(80 * GIB))
    assert 0 < result.low_bytes < result.high_bytes
    for memory_bytes, answer in (
        (result.low_bytes - 1, FITS_NOT),
        (result.low_bytes, CLOSE),
        (result.high_bytes - 1, CLOSE),
        (result.high_bytes, FITS),
    ):
        assert dataclasses.replace(result, device=device(memory_bytes)).answer == answer
    assert "one device fits: " in result.why
    assert "most of its peak in backward are activations" in result.why


def test_interval_is_made_of_the_replay_and_the_overheads() -> None:
    """Low: allocated and the least of each; high: reserved and the most; two axes have two communicators."""
    layout = Layout(replicate=2, shard=2)
    result = judge(small(), layout, device(80 * GIB))
    by_name = {part.kind: part for part in result.overheads}
    assert by_name["communicator"].low_bytes == 2 * overhead(device(GIB), "communicator").low_bytes
    outside = sum(part.high_bytes for part in result.overheads if part.kind != "workspace")
    assert result.high_bytes == result.memory.reserved_bytes + outside
    plain = memory(small(), layout)
    assert result.memory.allocated_bytes == plain.allocated_bytes + by_name["workspace"].high_bytes


def test_unknown_device_has_the_widest_interval() -> None:
    """Less is known, so more is too close to call."""
    known, unknown = (judge(small(), Layout(), device(80 * GIB, chip)) for chip in ("A100", "other"))
    assert unknown.low_bytes <= known.low_bytes < known.high_bytes < unknown.high_bytes


def test_fewest_ranks() -> None:
    """On so many ranks it fits, on half of them it does not; with replicas alone it never does."""
    need = judge(small(), Layout(shard=4, rows=8), device(80 * GIB))
    tight = device(need.high_bytes)
    result = fewest(small(), tight, lambda count: Layout(shard=count))
    assert 1 < result.surely <= 4
    assert result.perhaps <= result.surely
    assert result.verdict is not None
    assert result.verdict.answer == FITS
    before = judge(small(), Layout(shard=result.surely // 2, rows=8), tight)
    assert before.answer != FITS


def test_fewest_ranks_may_not_exist() -> None:
    """One row and what every rank has is too much: no number of ranks helps, and the search ends."""
    result = fewest(small(), device(600 * MIB), lambda count: Layout(replicate=count))
    assert (result.surely, result.perhaps) == (0, 0)
    assert result.verdict is not None
    assert result.verdict.answer == FITS_NOT


def test_no_more_stages_than_blocks_are_tried() -> None:
    """The search ends at the last possible pipeline."""
    result = fewest(small(), device(MIB), lambda count: Layout(pipeline=count, accumulation=count))
    assert result.surely == 0


@pytest.mark.parametrize("layout", [Layout(), Layout(replicate=4), Layout(shard=2, accumulation=2)])
def test_largest_batch_is_the_largest(layout: Layout) -> None:
    """So many rows fit, and one more for each rank does not."""
    result = largest_batch(small(), layout, device(16 * GIB))
    step = layout.num_data * layout.accumulation
    assert judge(small(), layout.changed(rows=result.surely), device(16 * GIB)).answer == FITS
    assert judge(small(), layout.changed(rows=result.surely + step), device(16 * GIB)).answer != FITS
    assert judge(small(), layout.changed(rows=result.perhaps), device(16 * GIB)).answer != FITS_NOT
    assert judge(small(), layout.changed(rows=result.perhaps + step), device(16 * GIB)).answer == FITS_NOT


def test_largest_batch_may_be_none() -> None:
    """A device on which one row does not fit; and rows that nobody knows."""
    assert largest_batch(small(), Layout(), device(MIB)).surely == 0
    with pytest.raises(UsageError, match="rows of a batch are unknown"):
        largest_batch(small().changed(rows=0), Layout(), device(GIB))


@given(intercept=st.integers(0, 1000), slope=st.integers(0, 50), floor=st.integers(0, 2000), limit=st.integers(0, 3000))
def test_search_finds_the_last_number(intercept: int, slope: int, floor: int, limit: int) -> None:
    """For needs that are flat and then a line, as those of a training are."""

    def needed(number: int) -> int:
        return max(floor, intercept + slope * number)

    result = verdict._most(needed, limit)
    assert result == 0 or needed(result) <= limit
    assert result >= verdict.MOST_ROWS - 1 or needed(result + 1) > limit


def test_advice_is_what_the_change_saves() -> None:
    """Each saving is the difference of two judgements; the largest is first, and there are three at most."""
    result = judge(small(), Layout(), device(4 * GIB))
    changes = advice(small(), result)
    assert 1 <= len(changes) <= 3
    assert [each.saved_bytes for each in changes] == sorted((each.saved_bytes for each in changes), reverse=True)
    for each in changes:
        assert each.saved_bytes == result.high_bytes - each.verdict.high_bytes
        if "logits" not in each.change:
            expandable = "expandable_segments" in each.change
            again = judge(small(), each.verdict.layout, device(4 * GIB), expandable=expandable)
            assert again.high_bytes == each.verdict.high_bytes
        assert f"{each.change} saves " in each.text


def test_advice_for_many_states_is_about_them() -> None:
    """A training without activations to speak of is told to shrink or shard states."""
    log = of_model(num_blocks=4, block_bytes=256 * MIB, activation_bytes=MIB)
    words = [each.change for each in advice(log, judge(log, Layout(replicate=4), device(4 * GIB)))]
    assert words[0] == "FSDP (--scale fsdp)"
    assert "8-bit Adam" in words
    small_states = judge(log, Layout(replicate=4, optimizer="adam8bit"), device(4 * GIB))
    assert "8-bit Adam" not in [change.text for change in _changes(log, small_states)]
    assert not [change for change in words if "activations" in change or "accumulation" in change]


def test_segments_that_expand_are_tried_where_they_are_known() -> None:
    """On AMD no source says that all versions have them."""
    for chip in ("A100", "MI250X"):
        changes = list(_changes(small(), judge(small(), Layout(), device(4 * GIB, chip))))
        assert any(change.expandable for change in changes) == (chip == "A100")


def test_sentences_name_the_answer() -> None:
    """Each answer has its verb."""
    result = judge(small(), Layout(), device(80 * GIB))
    words = [
        dataclasses.replace(result, device=device(size)).why for size in (MIB, result.low_bytes, result.high_bytes)
    ]
    assert [word.partition(":")[0] for word in words] == [
        "one device does not fit", "one device is too close to call", "one device fits",
    ]  # fmt: skip


def test_logits_are_what_comes_after_the_blocks() -> None:
    """Logits and their gradient of 256 MiB each are live at once; in 8 chunks they are an eighth."""
    assert most_of_loss(small()) == 2 * 256 * MIB
    assert most_of_loss(with_chunked_loss(small()).changed()) == 0  # they are smaller than what leaves a block
    whole, chunked = (memory(log, Layout()).peak.num_bytes for log in (small(), with_chunked_loss(small())))
    assert 0 < whole - chunked <= 2 * 256 * MIB * 7 // 8


def test_choice_is_the_first_that_fits() -> None:
    """Every simpler strategy needs more than the device has, and the sentence names the next simpler one."""
    needs = {layout: judge(small(), layout, device(80 * GIB)).high_bytes for layout in choice.candidates(4, 4)}
    for layout, need in needs.items():
        tight = device(int(need / (1 - choice.MARGIN)) + 1)
        result = choose(small(), tight, 4, ranks_per_node=4, node_bytes=512 * GIB)
        assert result.chosen is not None
        assert result.chosen.fits_with(choice.MARGIN)
        assert all(not each.fits_with(choice.MARGIN) for each in result.refused)
        assert list(needs).index(result.chosen.layout) <= list(needs).index(layout)
        assert result.simpler is None or f"{result.simpler.layout.name} would take" in result.why


def test_choice_of_one_device_and_of_none() -> None:
    """A large device needs no strategy; on a tiny one no strategy helps, and the sentence says what needs least."""
    assert choose(small(), device(80 * GIB), 1).why.startswith("one device takes at most")
    result = choose(small(), device(MIB), 4)
    assert result.chosen is None
    assert "no strategy fits" in result.why
    assert len(result.refused) == len(choice.candidates(4, 8))


def test_offload_needs_the_memory_of_the_node() -> None:
    """Without a known memory of the node, nothing is put there."""
    tight = device(int(judge(small(), choice.candidates(4, 8)[-1], device(GIB)).high_bytes / 0.94))
    with_node, without = (choose(small(), tight, 4, node_bytes=size) for size in (512 * GIB, 0))
    assert with_node.chosen is not None
    assert with_node.chosen.layout.offload
    assert without.chosen is None


def test_nodes_get_hsdp_before_fsdp() -> None:
    """On several nodes weights are first sharded within a node."""
    names = [layout.name for layout in choice.candidates(16, 8)]
    assert names[:5] == ["data", "ZeRO-1", "ZeRO-2", "HSDP", "FSDP"]
    assert "HSDP" not in [layout.name for layout in choice.candidates(8, 8)]


def test_too_few_rows_are_refused() -> None:
    """A rank without a row cannot train."""
    with pytest.raises(UsageError, match="a batch of 8 rows cannot be cut into 16 ranks"):
        choose(small(), device(80 * GIB), 16)


@settings(deadline=None, max_examples=10)
@given(num_ranks=st.sampled_from([2, 4, 8]))
def test_strategies_are_ordered_by_what_they_hold(num_ranks: int) -> None:
    """Of weights, gradients and states: data, ZeRO-1, ZeRO-2 and FSDP never hold more than the one before."""
    log = of_model(activation_bytes=MIB, block_bytes=64 * MIB)
    layouts = choice.candidates(num_ranks, 8)[:4]
    peaks = [memory(log, layout).peak.parts for layout in layouts]
    kept = [sum(parts.get(name, 0) for name in ("parameter", "state")) for parts in peaks]
    assert kept == sorted(kept, reverse=True)


def test_workspaces_of_convolutions_raise_the_high_end_alone() -> None:
    """Nobody knows what a convolution takes beside its tensors: the least is nothing, and the peak has none of it."""
    logs = []
    for work in (0, 64 * MIB):
        log = Written(rows=2, modules=("",))
        log.weight("conv.weight", 1024, -1)
        log.mark("step")
        kept = log.new(4 * MIB, "activation", grows=True)
        log.free(log.new(work, "workspace", grows=True))
        log.mark("backward")
        log.free(kept)
        log.mark("optimizer")
        log.mark("end")
        logs.append(log.read())
    device = Device(chip="A100", memory_bytes=40 << 30)
    plain, worked = (judge(log, Layout(), device) for log in logs)
    assert worked.low_bytes == plain.low_bytes
    assert worked.memory.peak.num_bytes == plain.memory.peak.num_bytes
    assert worked.high_bytes == plain.high_bytes + 64 * MIB
    half = judge(logs[1], Layout(replicate=2), device)
    assert half.overheads[-1].high_bytes == 32 * MIB
