"""Replay PyTorch's caching allocator: it takes memory from a device, and gives a part of this memory to tensors.

The rules are those of c10/cuda/CUDACachingAllocator.cpp with its defaults, the same from PyTorch 2.6 to 2.13. Addresses
in a replay rise with each segment; on a device the driver chooses them, which decides only between blocks of one size.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from echelon.estimate.log import EventLog

MIB = 1 << 20
SMALLEST = 512
"""Sizes are rounded up to a multiple of it (kMinBlockSize)."""
MOST_OF_SMALL = MIB
"""The largest size of the pool of small blocks (kSmallSize); a larger rest of a large block is split off."""
SMALL_SEGMENT = 2 * MIB  # kSmallBuffer
LARGE_SEGMENT = 20 * MIB  # kLargeBuffer
LEAST_OF_OWN = 10 * MIB
"""From this size on a tensor gets a segment of its own (kMinLargeAlloc), rounded up to ROUND_OF_OWN (kRoundLarge)."""
ROUND_OF_OWN = 2 * MIB
ADDRESS_SPACE = 1 << 50
"""Addresses of an expandable segment; PyTorch takes 9/8 of the device's memory."""


class OutOfMemory(Exception):
    """No room was left after all cached blocks were freed."""


class _Pool:
    """The free blocks of one stream, small or large, in the order in which a best fit is sought."""

    __slots__ = ("free", "is_small", "unmapped")

    def __init__(self, is_small: bool) -> None:
        self.is_small = is_small
        self.free: list[tuple[int, int, _Block]] = []
        self.unmapped: list[tuple[int, _Block]] = []


class _Block:
    """A part of a segment."""

    __slots__ = ("address", "after", "before", "is_free", "is_mapped", "pool", "size")

    def __init__(self, address: int, size: int, pool: _Pool) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.before: _Block | None = None
        self.after: _Block | None = None
        self.is_free = False
        self.is_mapped = True


def rounded(num_bytes: int) -> int:
    """Return the size of the block that a tensor gets."""
    return max(SMALLEST, -(-num_bytes // SMALLEST) * SMALLEST)


def segment_size(size: int) -> int:
    """Return what is taken from the device for a block that fits into no free block."""
    if size <= MOST_OF_SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < LEAST_OF_OWN else -(-size // ROUND_OF_OWN) * ROUND_OF_OWN


class Allocator:
    """The allocator of one device; `limit_bytes` is what it may take (0: no limit)."""

    def __init__(self, *, limit_bytes: int = 0, expandable: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self.is_expandable = expandable
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.num_retries = 0
        """How often all cached blocks were freed for lack of memory."""
        self._pools: dict[tuple[int, bool], _Pool] = {}
        self._next_address = 0

    def allocate(self, num_bytes: int, stream: int = 0) -> _Block:
        """Return a block for so many bytes; raise OutOfMemory if the device is full."""
        size = rounded(num_bytes)
        is_small = size <= MOST_OF_SMALL
        pool = self._pools.get((stream, is_small))
        if pool is None:
            pool = self._pools[stream, is_small] = _Pool(is_small)
        block = self._fitting(pool, size) or self._taken(pool, size)
        rest = block.size - size
        if rest >= SMALLEST if is_small or self.is_expandable else rest > MOST_OF_SMALL:
            self._split(block, size)
        block.is_free = False
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        return block

    def free(self, block: _Block) -> None:
        """Give a block back to its pool, where it merges with free neighbours."""
        self.allocated_bytes -= block.size
        self._merge(block)
        block.is_free = True
        insort(block.pool.free, (block.size, block.address, block))

    def _fitting(self, pool: _Pool, size: int) -> _Block | None:
        """Take the smallest free block that is large enough, at the lowest address."""
        free = pool.free
        index = bisect_left(free, (size,))
        if index == len(free):
            return None
        if self.is_expandable:  # a block that could still grow counts as what it could grow to
            while index + 1 < len(free) and _could_be(free[index + 1][2]) < _could_be(free[index][2]):
                index += 1
        return free.pop(index)[2]

    def _split(self, block: _Block, size: int) -> None:
        rest = _Block(block.address + size, block.size - size, block.pool)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after = rest
        block.size = size
        rest.is_free = True
        insort(block.pool.free, (rest.size, rest.address, rest))

    def _merge(self, block: _Block) -> None:
        free = block.pool.free
        other = block.before
        if other is not None and other.is_free and other.is_mapped:
            del free[bisect_left(free, (other.size, other.address))]
            block.address, block.before = other.address, other.before
            block.size += other.size
            if block.before is not None:
                block.before.after = block
        other = block.after
        if other is not None and other.is_free and other.is_mapped:
            del free[bisect_left(free, (other.size, other.address))]
            block.size += other.size
            block.after = other.after
            if block.after is not None:
                block.after.before = block

    def _taken(self, pool: _Pool, size: int) -> _Block:
        """Take memory from the device; free what is cached if there is too little."""
        take = self._expanded if self.is_expandable else self._segment
        block = take(pool, size)
        if block is None:
            self.num_retries += 1
            self._release()
            block = take(pool, size)
        if block is None:
            raise OutOfMemory
        return block

    def _reserve(self, num_bytes: int) -> bool:
        if self.limit_bytes and self.reserved_bytes + num_bytes > self.limit_bytes:
            return False
        self.reserved_bytes += num_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return True

    def _segment(self, pool: _Pool, size: int) -> _Block | None:
        taken = segment_size(size)
        if not self._reserve(taken):
            return None
        block = _Block(self._next_address, taken, pool)
        self._next_address += taken
        return block

    def _expanded(self, pool: _Pool, size: int) -> _Block | None:
        """Map pages at the first place where free and unmapped blocks have room."""
        block = next((place for place in map(_from, pool.unmapped) if _has_room(place, size)), None)
        if block is None:
            block = _Block(self._next_address, ADDRESS_SPACE, pool)
            self._next_address += ADDRESS_SPACE
            block.is_free, block.is_mapped = True, False
            pool.unmapped.append((block.address, block))
        if not block.is_mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            other = block.after
            if other is None or not self._map(other, min(size - block.size, other.size)):
                return None
            block = other  # it has taken in the free block before it
        del pool.free[bisect_left(pool.free, (block.size, block.address))]
        return block

    def _map(self, block: _Block, num_bytes: int) -> bool:
        pool = block.pool
        page = SMALL_SEGMENT if pool.is_small else LARGE_SEGMENT
        mapped = min(-(-num_bytes // page) * page, block.size)
        if not self._reserve(mapped):
            return False
        del pool.unmapped[bisect_left(pool.unmapped, (block.address,))]
        if mapped < block.size:
            rest = _Block(block.address + mapped, block.size - mapped, pool)
            rest.is_free, rest.is_mapped = True, False
            rest.before, rest.after = block, block.after
            if block.after is not None:
                block.after.before = rest
            block.after, block.size = rest, mapped
            insort(pool.unmapped, (rest.address, rest))
        block.is_mapped = True
        self._merge(block)
        insort(pool.free, (block.size, block.address, block))
        return True

    def _release(self) -> None:
        """Give the device back what is cached: whole free segments, or whole free pages of those that expand."""
        for pool in self._pools.values():
            kept = []
            for size, address, block in pool.free:
                if self.is_expandable:
                    kept += [(part.size, part.address, part) for part in self._unmapped(block)]
                elif block.before is None and block.after is None:
                    self.reserved_bytes -= size
                else:
                    kept.append((size, address, block))
            pool.free = sorted(kept, key=lambda entry: entry[:2])

    def _unmapped(self, block: _Block) -> list[_Block]:
        """Unmap the whole pages of a free block; return the parts that stay mapped."""
        page = SMALL_SEGMENT if block.pool.is_small else LARGE_SEGMENT
        begin, end = -(-block.address // page) * page, (block.address + block.size) // page * page
        if begin >= end:
            return [block]
        stays = []
        for address, size in ((block.address, begin - block.address), (end, block.address + block.size - end)):
            part = _Block(address, size, block.pool)
            part.is_free = True
            stays.append(part)
        self.reserved_bytes -= end - begin
        first, last = stays
        block.address, block.size, block.is_mapped = begin, end - begin, False
        if first.size:
            _link(block.before, first)
            _link(first, block)
        if last.size:
            _link(last, block.after)
            _link(block, last)
        insort(block.pool.unmapped, (block.address, block))
        return [part for part in stays if part.size]


def _link(block: _Block | None, other: _Block | None) -> None:
    if block is not None:
        block.after = other
    if other is not None:
        other.before = block


def _could_be(block: _Block) -> int:
    after = block.after
    return block.size + (after.size if after is not None and not after.is_mapped else 0)


def _from(entry: tuple[int, _Block]) -> _Block:
    """Return where an unmapped block's room begins: with the free block before it."""
    block = entry[1]
    return block.before if block.before is not None and block.before.is_free else block


def _has_room(block: _Block, size: int) -> bool:
    room, place = 0, block if block.is_free else None
    while place is not None and place.is_free and room < size:
        room += place.size
        place = place.after
    return room >= size


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What the allocator reports after a training."""

    allocated_bytes: int
    """The peak of allocated blocks, as torch.cuda.max_memory_allocated."""
    reserved_bytes: int
    """The peak of what is taken from the device, as torch.cuda.max_memory_reserved."""
    num_retries: int
    """How often cached blocks were freed for lack of memory."""
    is_complete: bool
    """Whether the training ended; False: it ran out of memory, and the peaks are those until then."""


def replay(log: EventLog, *, limit_bytes: int = 0, expandable: bool = False, before: tuple[int, ...] = ()) -> Replay:
    """Allocate and free the tensors of a log in its order; `before` are sizes that libraries take first."""
    allocator = Allocator(limit_bytes=limit_bytes, expandable=expandable)
    sizes = [tensor.num_bytes for tensor in log.tensors]
    streams = [tensor.stream for tensor in log.tensors]
    blocks: dict[int, _Block] = {}
    allocate, free = allocator.allocate, allocator.free
    is_complete = True
    try:
        for size in before:
            allocate(size)
        for event in log.events:
            if type(event) is int:
                if event < 0:
                    if -event - 1 in blocks:
                        free(blocks.pop(-event - 1))
                elif sizes[event]:
                    blocks[event] = allocate(sizes[event], streams[event])
    except OutOfMemory:
        is_complete = False
    return Replay(
        allocated_bytes=allocator.peak_allocated_bytes,
        reserved_bytes=allocator.peak_reserved_bytes,
        num_retries=allocator.num_retries,
        is_complete=is_complete,
    )
