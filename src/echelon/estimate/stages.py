"""Keep of a log what one stage of a pipeline computes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from echelon.errors import UsageError
from echelon.estimate.log import BACKWARD, STEP, Event, EventLog, LoggedTensor
from echelon.estimate.places import BEFORE, AllocationPlaces, places, state_owners
from echelon.estimate.timeline import BUILDING, NAMES


def cut(log: EventLog, num_stages: int) -> list[range]:
    """Return the blocks of each stage: the stage with the most weights has as few as can be."""
    if len(log.blocks) < num_stages:
        raise UsageError(
            f"the pipeline has {num_stages} stages, but the model has only {len(log.blocks)} blocks",
            hint=f"pipeline={max(1, len(log.blocks))}",
        )
    sizes = [0] * len(log.blocks)
    blocks = _blocks(log)
    for position, weight in enumerate(log.weights):
        sizes[min(max(blocks[position], 0), len(sizes) - 1)] += weight.num_bytes
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


@functools.lru_cache(maxsize=4)
def _blocks(log: EventLog) -> tuple[int, ...]:
    """Return the block of each weight; those outside are before the first block or after the last, as they are used.

    A weight whose module keeps nothing of the forward is placed as it is listed: before or after the first block's.
    """
    first_in_block = next((at for at, weight in enumerate(log.weights) if weight.block >= 0), len(log.weights))
    uses = _first_uses(log)
    blocks = []
    for position, weight in enumerate(log.weights):
        listed = BEFORE if position < first_in_block else len(log.blocks)
        used = uses.get(weight.name.rpartition(".")[0], listed)
        blocks.append(weight.block if weight.block >= 0 else used)
    return tuple(blocks)


def _first_uses(log: EventLog) -> dict[str, int]:
    """Return where in the forward each module first allocates something: a block, BEFORE, or the number of blocks."""
    where = places(log)
    uses: dict[str, int] = {}
    for index, tensor in enumerate(log.tensors):
        if tensor.module >= 0 and where.phases[index] == NAMES[STEP]:
            uses.setdefault(log.modules[tensor.module], where.blocks[index])
    return uses


def stage(log: EventLog, blocks: range, num_parts: int) -> EventLog:
    """Return the log of the rank that has these blocks, and what is before the first or after the last block.

    PyTorch keeps a buffer for what each micro-batch gets from the stage before, and for the gradient that it gets from
    the stage after: they are allocated before the first step (torch.distributed.pipelining.stage). One gradient is
    still being sent to the stage before while the next one is computed.
    """
    where = places(log)
    low = BEFORE if blocks.start == 0 else blocks.start
    high = len(log.blocks) if blocks.stop == len(log.blocks) else blocks.stop - 1
    owned = _blocks(log)
    weights = tuple(weight for weight, block in zip(log.weights, owned, strict=True) if low <= block <= high)
    kept = _kept(log, where, low, high, {weight.tensor for weight in weights})
    whole = sum(weight.num_bytes for weight in log.weights)
    part = sum(weight.num_bytes for weight in weights)
    tensors = [
        _of_optimizer(tensor, part, whole) if where.phases[index] == "optimizer" else tensor
        for index, tensor in enumerate(log.tensors)
    ]
    former, own = _of_block(where.outputs, low - 1), _of_block(where.outputs, high)
    messages = former * (num_parts + 1) + own * num_parts
    buffers = [log.tensors[index]._replace(category="communication", module=-1) for index in messages]
    events: list[Event] = list(range(len(tensors), len(tensors) + len(buffers)))
    for event in _held(log.events, _passed_on(log, where, high)):
        if type(event) is int:
            is_kept = kept[event if event >= 0 else -event - 1]
        else:
            is_kept = isinstance(event, str) or (isinstance(event, tuple) and event[1] in blocks)
        if is_kept:
            events.append(event)
    return log.changed(weights=weights, tensors=tensors + buffers, events=events)


def _of_block(outputs: dict[int, int], block: int) -> list[int]:
    """Return the tensor that a block passes on in the last step; none of what is no block."""
    return [index for index, owner in outputs.items() if owner == block][-1:]


def _passed_on(log: EventLog, where: AllocationPlaces, high: int) -> set[int]:
    """Return the outputs of a stage in all steps: those of its last block, or of the last module after all blocks."""
    if high < len(log.blocks):
        return {index for index, owner in where.outputs.items() if owner == high}
    outputs, last = set(), -1
    for event in log.events:
        if event == BACKWARD:
            outputs.add(last)
        elif type(event) is int and event >= 0 and where.blocks[event] == high and where.phases[event] == NAMES[STEP]:
            tensor = log.tensors[event]
            last = event if tensor.module >= 0 and tensor.grows else last
    return outputs


def _held(events: Sequence[Event], outputs: set[int]) -> Iterator[Event]:
    """Return the events with the outputs of a stage live until their backward has ended: PyTorch keeps them."""
    waiting: list[int] = []
    for event in events:
        if type(event) is int and event < 0 and -event - 1 in outputs:
            waiting.append(event)
            continue
        if isinstance(event, str) and event != BACKWARD:
            yield from waiting
            waiting = []
        yield event


def _of_optimizer(tensor: LoggedTensor, part: int, whole: int) -> LoggedTensor:
    """Scale what an optimizer computes with: its size is that of weights."""
    is_temporary = tensor.category == "temporary" and not tensor.grows
    return tensor._replace(num_bytes=-(-tensor.num_bytes * part // max(1, whole))) if is_temporary else tensor


def _kept(log: EventLog, where: AllocationPlaces, low: int, high: int, parameters: set[int]) -> list[bool]:
    """Say which tensors this stage allocates; those of other stages come into its buffers."""
    owners, blocks = state_owners(log), _blocks(log)
    kept = []
    for index, tensor in enumerate(log.tensors):
        if tensor.category == "parameter":
            is_kept = index in parameters
        elif tensor.category == "state":
            owner = owners.get(index, -1)
            is_kept = owner < 0 or low <= blocks[owner] <= high
        elif where.phases[index] in (BUILDING, "optimizer") or tensor.category == "input":
            is_kept = True
        else:
            is_kept = low <= where.blocks[index] <= high
        kept.append(is_kept)
    return kept
