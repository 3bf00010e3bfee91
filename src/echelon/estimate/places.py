"""Say where in a step each tensor is allocated, and to which weight an optimizer state belongs."""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass

from echelon.estimate.log import BACKWARD, ENTER, ENTER_BACKWARD, LEAVE, OPTIMIZER, STEP, WORKSPACE, EventLog
from echelon.estimate.timeline import BUILDING, NAMES

BEFORE = -1
"""The place of what is computed before the first block; that after the last is the number of blocks."""
OF_ELEMENTS = 8
"""A state of at most so many bytes is a counter: no strategy divides it."""


@dataclass(frozen=True, slots=True)
class AllocationPlaces:
    """Where tensors are allocated, by tensor."""

    phases: list[str]
    """building, forward, backward or optimizer."""
    blocks: list[int]
    """The block that computes, or that has just computed; BEFORE, or the number of blocks after the last."""
    outputs: dict[int, int]
    """The block of each tensor that leaves a block in forward: the last that it has allocated and that still lives."""
    passed: dict[int, int]
    """The same in backward: the gradient for the block before."""


@functools.lru_cache(maxsize=2)
def places(log: EventLog) -> AllocationPlaces:
    num_tensors = len(log.tensors)
    result = AllocationPlaces([BUILDING] * num_tensors, [BEFORE] * num_tensors, {}, {})
    walk = _Walk(len(log.blocks), log, result)
    for event in log.events:
        if type(event) is int:
            walk.tensor(event)
        elif isinstance(event, str):
            walk.phase(event)
        elif isinstance(event, tuple):
            walk.border(*event)
    return result


class _Walk:
    def __init__(self, num_blocks: int, log: EventLog, result: AllocationPlaces) -> None:
        self._num_blocks = num_blocks
        self._tensors = log.tensors
        self._has_rows = log.rows > 0
        self._result = result
        self._phase = BUILDING
        self._block = BEFORE
        self._inside: dict[int, None] = {}  # live tensors of the block, in order

    def tensor(self, event: int) -> None:
        if event < 0:
            self._inside.pop(-event - 1, None)
            return
        self._result.phases[event] = self._phase
        self._result.blocks[event] = self._block
        self._inside[event] = None

    def phase(self, event: str) -> None:
        self._phase = NAMES[event]
        if event in (STEP, OPTIMIZER) or not self._num_blocks:
            self._block = BEFORE
        elif event == BACKWARD:
            self._block = self._num_blocks

    def border(self, kind: str, block: int) -> None:
        if kind in (ENTER, ENTER_BACKWARD):
            self._block, self._inside = block, {}
            return
        candidates = (index for index in reversed(self._inside) if self._tensors[index].grows or not self._has_rows)
        last = next(candidates, -1)
        if last >= 0 and self._tensors[last].category != "gradient":
            (self._result.outputs if kind == LEAVE else self._result.passed)[last] = block
        if kind == LEAVE and block == self._num_blocks - 1:
            self._block = self._num_blocks
        elif kind != LEAVE and block == 0:
            self._block = BEFORE


@functools.lru_cache(maxsize=2)
def of_loss(log: EventLog) -> frozenset[int]:
    """Return the tensors of logits and loss: those after the last block that are larger than what leaves a block."""
    where = places(log)
    output = max((log.tensors[index].num_bytes for index in where.outputs), default=0)
    return frozenset(
        index
        for index, tensor in enumerate(log.tensors)
        if tensor.grows and tensor.category != WORKSPACE
        if where.blocks[index] == len(log.blocks) and tensor.num_bytes > output > 0
    )


@functools.lru_cache(maxsize=4)
def state_owners(log: EventLog) -> dict[int, int]:
    """Return the index of the weight of each optimizer state: by the order of both, or else by their sizes."""
    states = [event for event in log.events if type(event) is int and event >= 0]
    states = [index for index in states if log.tensors[index].category == "state"]
    states = [index for index in states if log.tensors[index].num_bytes > OF_ELEMENTS]
    sizes = [weight.num_bytes for weight in log.weights]
    each = len(states) // max(1, len(sizes))
    if each and len(states) == each * len(sizes):
        by_order = {tensor: position // each for position, tensor in enumerate(states)}
        if all(log.tensors[tensor].num_bytes == sizes[owner] for tensor, owner in by_order.items()):
            return by_order
    return _by_size(log, states)


def _by_size(log: EventLog, states: list[int]) -> dict[int, int]:
    """Deal the states of one size out to the weights of this size; states of other sizes have no owner."""
    weights: dict[int, list[int]] = defaultdict(list)
    for position, weight in enumerate(log.weights):
        weights[weight.num_bytes].append(position)
    alike: dict[int, list[int]] = defaultdict(list)
    for tensor in states:
        alike[log.tensors[tensor].num_bytes].append(tensor)
    owners = {}
    for size, tensors in alike.items():
        candidates = weights.get(size, [])
        for turn, tensor in enumerate(tensors if candidates else []):
            owners[tensor] = candidates[turn * len(candidates) // len(tensors)]
    return owners


def is_matrix(name: str) -> bool:
    """Say by its name whether a weight is a matrix, not a bias or the scale of a norm."""
    words = name.lower().split(".")
    return not (words[-1].endswith("bias") or any("norm" in word or word.startswith("ln") for word in words))
