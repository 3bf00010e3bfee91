"""The replay of PyTorch's caching allocator: its sizes and rules by hand, and what holds for any order of tensors."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.estimate.logs import MIB, Written, of_model

from echelon.estimate.allocator import Allocator, OutOfMemory, replay, rounded, segment_size

SIZES = [(1, 512), (512, 512), (513, 1024), (1 << 20, 1 << 20)]
SEGMENTS = [
    (512, 2 * MIB), (MIB, 2 * MIB), (MIB + 512, 20 * MIB), (10 * MIB - 512, 20 * MIB),
    (10 * MIB, 10 * MIB), (10 * MIB + 512, 12 * MIB), (33 * MIB, 34 * MIB),
]  # fmt: skip


@pytest.mark.parametrize(("num_bytes", "size"), SIZES)
def test_sizes_are_multiples_of_512_bytes(num_bytes: int, size: int) -> None:
    """Each tensor gets a whole number of 512 bytes."""
    assert rounded(num_bytes) == size


@pytest.mark.parametrize(("size", "taken"), SEGMENTS)
def test_segment_is_that_of_pytorch(size: int, taken: int) -> None:
    """What is taken from the device for a size: kSmallBuffer, kLargeBuffer, or a multiple of kRoundLarge."""
    assert segment_size(size) == taken


def test_small_blocks_share_a_segment() -> None:
    """Four tensors of half a mebibyte fit into two mebibytes; the fifth needs another segment."""
    allocator = Allocator()
    for _ in range(4):
        allocator.allocate(MIB // 2)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (2 * MIB, 2 * MIB)
    allocator.allocate(1)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (2 * MIB + 512, 4 * MIB)


def test_rest_of_a_large_block_is_split_from_one_mebibyte_on() -> None:
    """A rest of one mebibyte stays with the block, and counts as allocated, as in torch.cuda.memory_allocated."""
    allocator = Allocator()
    allocator.allocate(19 * MIB)
    assert allocator.allocated_bytes == 20 * MIB
    other = Allocator()
    other.allocate(8 * MIB)
    other.allocate(8 * MIB)
    assert (other.allocated_bytes, other.reserved_bytes) == (16 * MIB, 20 * MIB)


def test_best_fit_takes_the_smallest_free_block() -> None:
    """Of two free blocks the smaller one that is large enough is taken."""
    allocator = Allocator()
    large, between, small = allocator.allocate(30 * MIB), allocator.allocate(11 * MIB), allocator.allocate(12 * MIB)
    allocator.free(large)
    allocator.free(small)
    assert allocator.allocate(12 * MIB) is small
    assert allocator.allocate(29 * MIB) is large
    assert between.size == 12 * MIB  # rounded to two mebibytes; the rest is too small to split


def test_free_neighbours_merge() -> None:
    """Three free blocks of one segment become one that holds a larger tensor."""
    allocator = Allocator()
    blocks = [allocator.allocate(6 * MIB) for _ in range(3)]
    for block in (blocks[0], blocks[2], blocks[1]):
        allocator.free(block)
    allocator.allocate(19 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_streams_have_pools_of_their_own() -> None:
    """What one stream has freed another stream does not get."""
    allocator = Allocator()
    allocator.free(allocator.allocate(50 * MIB, 0))
    allocator.allocate(50 * MIB, 1)
    assert (allocator.peak_allocated_bytes, allocator.reserved_bytes) == (50 * MIB, 100 * MIB)


@pytest.mark.parametrize("expandable", [False, True])
def test_cached_blocks_are_freed_when_the_device_is_full(expandable: bool) -> None:
    """A full device gets its cached segments back before a training fails."""
    allocator = Allocator(limit_bytes=100 * MIB, expandable=expandable)
    allocator.free(allocator.allocate(60 * MIB, 0))
    allocator.allocate(60 * MIB, 1)
    assert (allocator.num_retries, allocator.reserved_bytes) == (1, 60 * MIB)
    with pytest.raises(OutOfMemory):
        allocator.allocate(60 * MIB, 0)
    allocator.allocate(40 * MIB, 0)


def test_expandable_segment_grows_where_segments_fragment() -> None:
    """A segment that expands holds a larger tensor where a smaller one was; otherwise a second segment is taken."""
    reserved = []
    for expandable in (False, True):
        allocator = Allocator(expandable=expandable)
        allocator.free(allocator.allocate(40 * MIB))
        allocator.allocate(60 * MIB)
        reserved.append(allocator.reserved_bytes)
    assert reserved == [100 * MIB, 60 * MIB]


def test_replay_of_a_log_by_hand() -> None:
    """The peaks of a whole log, with the workspace of a library before it; tensors without bytes take nothing."""
    log = Written()
    log.mark("step")
    first = log.new(5 * MIB)
    log.mark("backward")
    log.new(0)
    second = log.new(300)
    log.mark("optimizer")
    log.free(first, second)
    log.new(3 * MIB)
    done = replay(log.read(), before=(8 * MIB,))
    assert (done.allocated_bytes, done.reserved_bytes) == (13 * MIB + 512, 22 * MIB)
    assert done.is_complete
    assert not done.num_retries


def test_replay_that_does_not_end() -> None:
    """A training that needs more than the limit is told as incomplete."""
    log = of_model()
    need = replay(log)
    assert replay(log, limit_bytes=need.reserved_bytes).is_complete
    assert not replay(log, limit_bytes=need.allocated_bytes // 2).is_complete


ACTS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 40 * MIB) | st.integers(0, 4096), st.integers(0, 2)), max_size=60
)


@given(acts=ACTS, expandable=st.booleans(), limit=st.sampled_from([0, 200 * MIB]))
def test_blocks_never_overlap(acts: list[tuple[int, int, int]], expandable: bool, limit: int) -> None:
    """Whatever the order: no byte belongs to two tensors, and what is reserved covers what is allocated."""
    allocator = Allocator(limit_bytes=limit, expandable=expandable)
    live = {}
    for key, size, stream in acts:
        if key in live:
            allocator.free(live.pop(key)[0])
            continue
        try:
            live[key] = (allocator.allocate(size, stream), size)
        except OutOfMemory:
            break
        assert all(block.size >= size for block, size in live.values())
        spans = sorted((block.address, block.address + block.size) for block, _ in live.values())
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
        assert sum(block.size for block, _ in live.values()) == allocator.allocated_bytes <= allocator.reserved_bytes
        assert not limit or allocator.reserved_bytes <= limit
