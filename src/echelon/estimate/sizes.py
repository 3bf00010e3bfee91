"""Resize the tensors of a log: other rows, cut matrices, 16-bit numbers, 8-bit optimizer states."""

from __future__ import annotations

import dataclasses

from echelon.estimate.layout import POLICY, Layout, share
from echelon.estimate.log import EventLog, LoggedTensor, Weight
from echelon.estimate.places import OF_ELEMENTS, AllocationPlaces, is_matrix, of_loss, state_owners

FP32 = 4
EIGHT_BIT_LEAST = 4096
"""States of fewer elements stay in 32 bits (bitsandbytes.optim: min_8bit_size)."""
EIGHT_BIT_BLOCK = 256
"""Elements with one 32-bit scale (bitsandbytes.optim.optimizer.Optimizer2State; 2048 before version 0.45)."""
WHOLE_OUTPUTS = {"o_proj", "wo", "out_proj", "to_out", "proj", "c_proj", "o", "out", "dense", "down_proj", "w2", "fc2",
                 "down", "dense_4h_to_h", "lin2", "linear2", "fc_out"}  # fmt: skip
"""Layers that are cut along their inputs: a sum over ranks makes their outputs whole."""


def resized(log: EventLog, layout: Layout, where: AllocationPlaces) -> EventLog:
    """Return the log with the sizes of one rank, before weights are sharded."""
    tensors = list(log.tensors)
    if log.rows:
        rows = layout.rows_of_micro_batch(log.rows)
        if rows != log.rows:
            tensors = [_grown(tensor, rows, log.rows) if tensor.grows else tensor for tensor in tensors]
    if layout.tensor > 1:
        _cut(log, tensors, layout.tensor, where)
    if layout.optimizer == "adam8bit":
        _eight_bit(tensors, where)
    if layout.precision == "bf16":
        is_small = layout.optimizer == "adam8bit"
        tensors = [_halved(tensor, is_small) for tensor in tensors]
    if layout.precision == POLICY:
        _compute_in_16_bits(log, tensors, where)
    weights = tuple(_resized_weight(weight, tensors[weight.tensor].num_bytes, layout) for weight in log.weights)
    return log.changed(tensors=tensors, weights=weights)


def _resized_weight(weight: Weight, num_bytes: int, layout: Layout) -> Weight:
    if num_bytes == weight.num_bytes:
        return weight
    is_cut = layout.tensor > 1 and weight.block >= 0 and is_matrix(weight.name)
    return dataclasses.replace(weight, num_bytes=num_bytes, length=0 if is_cut else weight.length)


def _grown(tensor: LoggedTensor, rows: int, traced: int) -> LoggedTensor:
    return LoggedTensor(-(-tensor.num_bytes * rows // traced), *tensor[1:])


def _halved(tensor: LoggedTensor, has_small_states: bool) -> LoggedTensor:
    """Return a tensor of 16-bit numbers; indices, masks of buffers, and counters stay as they are."""
    is_kept = tensor.category in ("input", "buffer") or tensor.num_bytes <= OF_ELEMENTS
    if is_kept or (has_small_states and tensor.category == "state"):
        return tensor
    return LoggedTensor(-(-tensor.num_bytes // 2), *tensor[1:])


def _compute_in_16_bits(log: EventLog, tensors: list[LoggedTensor], where: AllocationPlaces) -> None:
    """Halve gradients and activations; logits and loss stay, because the output of the model is cast to float32."""
    halved = ("gradient",) if log.half else ("gradient", "activation", "temporary")
    loss = of_loss(log)
    for index, tensor in enumerate(tensors):
        if tensor.category in halved and where.phases[index] in ("forward", "backward") and index not in loss:
            tensors[index] = _halved(tensor, False)


def _eight_bit(tensors: list[LoggedTensor], where: AllocationPlaces) -> None:
    """Store states of enough elements in a byte each; this optimizer computes in place, without temporaries."""
    for index, tensor in enumerate(tensors):
        if tensor.category == "state":
            elements = tensor.num_bytes // FP32
            if elements >= EIGHT_BIT_LEAST:
                scales = -(-elements // EIGHT_BIT_BLOCK)
                tensors[index] = tensor._replace(num_bytes=elements + FP32 * scales)
        elif tensor.category == "temporary" and where.phases[index] == "optimizer":
            tensors[index] = tensor._replace(num_bytes=0)


def _cut(log: EventLog, tensors: list[LoggedTensor], num_ranks: int, where: AllocationPlaces) -> None:
    """Cut the matrices of blocks, their gradients and states, and the activations inside attention and MLP."""
    owners = state_owners(log)
    cut = {position for position, weight in enumerate(log.weights) if weight.block >= 0 and is_matrix(weight.name)}
    sizes = {log.weights[position].num_bytes for position in cut}
    parameters = {log.weights[position].tensor for position in cut}
    inside = {index for index, name in enumerate(log.modules) if _is_inside(name, log.blocks)}
    hidden = _hidden_sizes(log, where, inside)
    for index, tensor in enumerate(tensors):
        if tensor.category == "parameter":
            is_cut = index in parameters
        elif tensor.category == "state":
            is_cut = owners.get(index, -1) in cut
        elif tensor.category == "gradient" or where.phases[index] == "optimizer":
            is_in_block = where.phases[index] == "optimizer" or 0 <= where.blocks[index] < len(log.blocks)
            is_cut = is_in_block and log.tensors[index].num_bytes in sizes
        else:
            is_hidden = (where.blocks[index], log.tensors[index].num_bytes) in hidden
            is_cut = tensor.grows and (tensor.module in inside or (where.phases[index] == "backward" and is_hidden))
        if is_cut:
            tensors[index] = tensor._replace(num_bytes=share(tensor.num_bytes, num_ranks))


def _hidden_sizes(log: EventLog, where: AllocationPlaces, inside: set[int]) -> set[tuple[int, int]]:
    """Return the blocks and sizes that only cut activations have: in backward no tensor tells its module."""
    cut, whole = set[tuple[int, int]](), set[tuple[int, int]]()
    for index, tensor in enumerate(log.tensors):
        if tensor.grows and where.phases[index] == "forward":
            (cut if tensor.module in inside else whole).add((where.blocks[index], tensor.num_bytes))
    return cut - whole


def _is_inside(module: str, blocks: tuple[str, ...]) -> bool:
    """Say whether a module computes with cut activations: it is in a block, no norm, and not where ranks add up."""
    block = next((name for name in blocks if module.startswith(name + ".")), None)
    if block is None:
        return False
    words = module[len(block) + 1 :].lower().split(".")
    is_whole = len(words) > 1 and (words[-1] in WHOLE_OUTPUTS or (words[-1] != "attn_dropout" and "drop" in words[-1]))
    return not (is_whole or any("norm" in word or word.startswith("ln") or "drop" in words[0] for word in words))
