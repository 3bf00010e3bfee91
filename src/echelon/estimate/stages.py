"""Keep of a log what one stage of a pipeline computes."""

from __future__ import annotations

from echelon.errors import UsageError
from echelon.estimate.log import Event, EventLog, Tensor
from echelon.estimate.places import BEFORE, Places, places, state_owners
from echelon.estimate.timeline import BUILDING


def cut(log: EventLog, num_stages: int) -> list[range]:
    """Return the blocks of each stage: the stage with the most weights has as few as can be."""
    if len(log.blocks) < num_stages:
        raise UsageError(
            f"the pipeline has {num_stages} stages, but the model has only {len(log.blocks)} blocks",
            hint=f"pipeline={max(1, len(log.blocks))}",
        )
    sizes = [0] * len(log.blocks)
    for position, weight in enumerate(log.weights):
        sizes[min(max(_block(log, position), 0), len(sizes) - 1)] += weight.num_bytes
    low, high = max(sizes), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_filled(sizes, middle, num_stages)) <= num_stages else (middle + 1, high)
    ends = _filled(sizes, low, num_stages)
    return [range(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def _filled(sizes: list[int], most: int, num_stages: int) -> list[int]:
    """Return where each stage ends if none holds more; every stage has a block."""
    ends, held = list[int](), 0
    for position, size in enumerate(sizes):
        is_full = held + size > most or len(sizes) - position <= num_stages - len(ends) - 1
        if position and held and is_full:
            ends.append(position)
            held = 0
        held += size
    return [*ends, len(sizes)]


def _block(log: EventLog, position: int) -> int:
    """Return the block of a weight; those outside are before the first block or after the last, as they are listed."""
    weight = log.weights[position]
    if weight.block >= 0:
        return weight.block
    has_blocks = any(other.block >= 0 for other in log.weights[:position])
    return len(log.blocks) if has_blocks else BEFORE


def stage(log: EventLog, blocks: range) -> EventLog:
    """Return the log of the rank that has these blocks, and what is before the first or after the last block."""
    where = places(log)
    low = BEFORE if blocks.start == 0 else blocks.start
    high = len(log.blocks) if blocks.stop == len(log.blocks) else blocks.stop - 1
    weights = tuple(weight for position, weight in enumerate(log.weights) if low <= _block(log, position) <= high)
    kept = _kept(log, where, low, high, {weight.tensor for weight in weights})
    whole = sum(weight.num_bytes for weight in log.weights)
    part = sum(weight.num_bytes for weight in weights)
    tensors = [
        _of_optimizer(tensor, part, whole) if where.phases[index] == "optimizer" else tensor
        for index, tensor in enumerate(log.tensors)
    ]
    events: list[Event] = []
    for event in log.events:
        if type(event) is int:
            is_kept = kept[event if event >= 0 else -event - 1]
        else:
            is_kept = isinstance(event, str) or (isinstance(event, tuple) and event[1] in blocks)
        if is_kept:
            events.append(event)
    return log.changed(weights=weights, tensors=tensors, events=events)


def _of_optimizer(tensor: Tensor, part: int, whole: int) -> Tensor:
    """Scale what an optimizer computes with: its size is that of weights."""
    is_temporary = tensor.category == "temporary" and not tensor.grows
    return tensor._replace(num_bytes=-(-tensor.num_bytes * part // max(1, whole))) if is_temporary else tensor


def _kept(log: EventLog, where: Places, low: int, high: int, parameters: set[int]) -> list[bool]:
    """Say which tensors this stage has; it also gets the output of the block before, and the gradient of its own."""
    owners = state_owners(log)
    kept = []
    for index, tensor in enumerate(log.tensors):
        if tensor.category == "parameter":
            is_kept = index in parameters
        elif tensor.category == "state":
            owner = owners.get(index, -1)
            is_kept = owner < 0 or low <= _block(log, owner) <= high
        elif where.phases[index] in (BUILDING, "optimizer") or tensor.category == "input":
            is_kept = True
        else:
            is_sent = where.outputs.get(index) == low - 1 or where.passed.get(index) == high + 1
            is_kept = is_sent or low <= where.blocks[index] <= high
        kept.append(is_kept)
    return kept
