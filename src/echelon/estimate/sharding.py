"""Add to a log what fully_shard holds: shards, gathered weights, and the buffers of its messages.

The order of allocations is that of torch.distributed.fsdp (torch 2.13: _fsdp_param_group.py, _fsdp_collectives.py).
"""

from __future__ import annotations

from collections import defaultdict

from echelon.estimate import log as borders
from echelon.estimate.layout import AFTER_BACKWARD, POLICY, Layout, share
from echelon.estimate.log import Event, EventLog, LoggedTensor
from echelon.estimate.places import OF_ELEMENTS, AllocationPlaces, state_owners
from echelon.estimate.replicas import is_of_optimizer, last_backwards

ROOT = -1
GATHER_STREAM, REDUCE_STREAM = 1, 2


def sharded(log: EventLog, layout: Layout, where: AllocationPlaces) -> EventLog:
    """Return the log of one rank of fully_shard; with `offload` its shards take nothing of the device."""
    recording = _Recording(log, layout)
    for position, event in enumerate(log.events):
        recording.take(position, event)
    tensors = recording.tensors
    _shard(log, tensors, layout, where)
    return log.changed(tensors=tensors, events=recording.events)


def _shard(log: EventLog, tensors: list[LoggedTensor], layout: Layout, where: AllocationPlaces) -> None:
    """Shrink weights, states and the optimizer's temporaries to the rank's part."""
    owners = state_owners(log)
    lengths = {weight.tensor: weight.length for weight in log.weights}
    for index, tensor in enumerate(log.tensors):
        if tensor.num_bytes <= OF_ELEMENTS:
            continue
        length = 0
        if tensor.category == "parameter":
            length = lengths.get(index, 0)
        elif tensor.category == "state":
            owner = log.weights[owners[index]] if index in owners else None
            is_alike = owner is not None and owner.num_bytes == tensor.num_bytes
            length = owner.length if owner is not None and is_alike else 0
        elif not is_of_optimizer(index, tensor, where):
            continue
        size = 0 if layout.offload else share(tensor.num_bytes, layout.shard, length=length)
        tensors[index] = tensors[index]._replace(num_bytes=size)


class _Recording:
    """Copies a log, and writes what fully_shard does where a block begins and ends."""

    def __init__(self, log: EventLog, layout: Layout) -> None:
        self.tensors = list(log.tensors)
        self.events: list[Event] = []
        self._layout = layout
        self._last = last_backwards(log.events)
        self._groups = _groups(log, layout.shard)
        self._has_policy = layout.precision == POLICY
        if self._has_policy:  # weights are gathered in 16 bits
            self._groups = {group: -(-size // 2) for group, size in self._groups.items()}
        self._is_backward = self._is_last = False
        self._block = ROOT
        self._whole: dict[int, int] = {}  # group: its gathered weights
        self._gathering: dict[int, int] = {}  # group: the output of its all-gather
        self._former = -1  # the output that the next copy frees
        self._gradients: dict[int, list[int]] = defaultdict(list)
        self._origins: dict[int, int] = {}  # gradient in 32 bits: the one in 16 bits that it was computed as
        self._reduced: dict[int, int] = {}  # gradient: the shard that replaces it
        self._users: dict[int, int] = defaultdict(int)  # shard: the gradients that it replaces
        self._sent: list[int] = []

    def take(self, position: int, event: Event) -> None:
        """Write an event, and what fully_shard does there."""
        if type(event) is int:
            self._tensor(event)
        elif isinstance(event, str):
            self._phase(position, event)
        elif isinstance(event, tuple):
            self._border(event)

    def _tensor(self, event: int) -> None:
        if event >= 0:
            self.events.append(event)
            if self.tensors[event].category == "gradient" and self._is_backward:
                self._gradients[self._block].append(event)
            return
        shard = self._reduced.pop(-event - 1, -1)
        if shard < 0:
            self.events.append(event)
            if self.tensors[-event - 1].category == "gradient":
                self._forget(-event - 1)
            return
        self._users[shard] -= 1
        if not self._users[shard] and not self._layout.offload:
            self.events.append(-shard - 1)

    def _forget(self, gradient: int) -> None:
        group = self._gradients[self._block]
        if group and group[-1] == gradient:
            group.pop()

    def _phase(self, position: int, event: str) -> None:
        if event == borders.OPTIMIZER:
            self._finish()
        self.events.append(event)
        if event == borders.STEP:
            self._is_backward = self._is_last = False
        elif event == borders.BACKWARD:
            self._is_backward, self._block = True, ROOT
            self._is_last = position in self._last
            self._drop_former()
        else:
            self._widen(ROOT)
            self._is_backward = False
        if event != borders.OPTIMIZER and not self._is_backward and ROOT not in self._whole and event != "end":
            self._gather(ROOT)
            self._copy_out(ROOT)

    def _border(self, event: tuple[str, int]) -> None:
        kind, block = event
        if kind == borders.ENTER and self._is_backward:  # a script accumulates: another forward of this step
            self._widen(ROOT)
            self._is_backward = False
        if kind == borders.ENTER and not self._is_backward and block not in self._whole:
            self._gather(block)
            self._copy_out(block)
        elif kind == borders.ENTER_BACKWARD:
            self._begin_backward(block)
        self.events.append(event)
        if kind == borders.LEAVE and not self._is_backward and self._layout.reshard != AFTER_BACKWARD:
            if self._layout.shard > 1:
                self._free_whole(block)
        elif kind == borders.LEAVE_BACKWARD:
            self._free_whole(block)
            self._widen(block)
            self._reduce(block)
            self._block = ROOT

    def _begin_backward(self, block: int) -> None:
        self._block = block
        if block not in self._whole:
            if block not in self._gathering:
                self._gather(block)
            self._copy_out(block)
            self._drop_former()
        if block > 0 and block - 1 not in self._whole and block - 1 not in self._gathering:
            self._gather(block - 1)

    def _new(self, num_bytes: int, category: str, stream: int = 0) -> int:
        self.tensors.append(LoggedTensor(num_bytes, category, -1, False, stream))
        self.events.append(len(self.tensors) - 1)
        return len(self.tensors) - 1

    def _gather(self, group: int) -> None:
        size = self._groups[group]
        if size and self._layout.shard > 1:
            if self._layout.offload:  # the shard comes from the host first
                size += share(size, self._layout.shard)
            self._gathering[group] = self._new(size, "communication", GATHER_STREAM)

    def _copy_out(self, group: int) -> None:
        """Copy gathered weights out of the message; its buffer is freed at the next copy, as PyTorch overlaps both."""
        if not self._groups[group]:
            return
        self._drop_former()
        self._whole[group] = self._new(self._groups[group], "gathered")  # on one shard a copy, too
        if self._layout.shard > 1:
            self._former = self._gathering.pop(group)

    def _drop_former(self) -> None:
        if self._former >= 0:
            self.events.append(-self._former - 1)
            self._former = -1

    def _free_whole(self, group: int) -> None:
        whole = self._whole.pop(group, -1)
        if whole >= 0:
            self.events.append(-whole - 1)

    def _reduce(self, group: int) -> None:
        """Replace the group's gradients by their shards, in the last backward of a step."""
        gradients = self._gradients[group]
        if not self._is_last or not gradients:
            return
        self._gradients[group] = []
        sizes = [share(self._reduced_bytes(gradient), self._layout.shard) for gradient in gradients]
        self._free_sent()
        self._sent.append(self._new(sum(sizes) * self._layout.shard, "communication"))
        self.events += [-gradient - 1 for gradient in gradients]
        shard = self._new(sum(sizes), "gradient", REDUCE_STREAM)
        if self._layout.offload:
            self.events.append(-shard - 1)
        self._reduced.update(dict.fromkeys([self._origins.get(gradient, gradient) for gradient in gradients], shard))
        self._users[shard] = len(gradients)

    def _reduced_bytes(self, gradient: int) -> int:
        """Return the bytes of a gradient that is reduced: by the policy in 32 bits, although it is computed in 16."""
        return self.tensors[gradient].num_bytes * (2 if self._has_policy and gradient not in self._origins else 1)

    def _widen(self, group: int) -> None:
        """Keep the gradients of an earlier backward in the type in which the last one will reduce them."""
        if not self._has_policy or self._is_last:
            return
        for position, gradient in enumerate(self._gradients[group]):
            if gradient not in self._origins:
                wide = self._new(2 * self.tensors[gradient].num_bytes, "gradient")
                self.events.append(-gradient - 1)
                self._origins[wide] = gradient
                self._gradients[group][position] = wide

    def _free_sent(self) -> None:
        self.events += [-sent - 1 for sent in self._sent]
        self._sent = []

    def _finish(self) -> None:
        """End a backward: the root has kept its weights until now."""
        self._drop_former()
        for group in list(self._gathering):
            self.events.append(-self._gathering.pop(group) - 1)
        for group in list(self._whole):
            self._free_whole(group)
        self._reduce(ROOT)
        self._free_sent()


def _groups(log: EventLog, num_ranks: int) -> dict[int, int]:
    """Return the bytes of each block's gathered weights, padding included, and of those outside of blocks."""
    groups: dict[int, int] = dict.fromkeys(range(ROOT, len(log.blocks)), 0)
    for weight in log.weights:
        groups[weight.block] += num_ranks * share(weight.num_bytes, num_ranks, length=weight.length)
    return groups
