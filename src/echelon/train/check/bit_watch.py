"""Compare the bits of what all ranks have alike: reduced gradients, weights and optimizer states (`--watch-bits`).

Before a step each rank adds up the bits of some of these tensors as whole numbers: one flipped bit changes a sum. The
sums travel while the ranks compute, and are read some steps later, so no rank waits for them. Each time other tensors
have their turn, as often as the measured cost allows. Before a checkpoint is written all tensors are compared at once.
"""

import socket
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .. import events
from ..global_tensors.tensors import tensors_of
from ..wire import device as devices
from ..wire import messages
from ..wire.world import World
from .part_runs import Checked
from .signature import is_plain

SHARE = 0.01
"""The share of a step that the watch may cost."""
LAG = 3
"""The number of steps between an exchange and its reading; the copy for it begins a step after the exchange."""
TURN_BYTES = 64 << 20
"""The bytes of the tensors that have their turn in a step."""
DEVICE_BYTES_PER_SECOND = 500e9
"""What every GPU of a data center reads: its time for a sum is not seen without waiting for it."""
MOST_BETWEEN = 1000
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
WAY_OUT = "continue from the newest checkpoint, whose bits were equal; if it happens again, let the node be repaired"


class FlippedBits(BaseException):
    """Ranks that must have the same bits have others: memory, a device or a network has altered them.

    It is no Exception, as ScalingError: a script that continues after an error must not continue after this one.
    """

    is_told_briefly = True


FlippedBits.__module__ = "echelon"


class Named(NamedTuple):
    """A tensor that all ranks have alike."""

    name: str
    tensor: torch.Tensor


class SumExchange(NamedTuple):
    """The sums of a step, on their way."""

    step: int
    names: list[str]
    own: torch.Tensor
    numbers: torch.Tensor
    """The greatest sum of all ranks for each tensor, that of the inverted bits, the cost, and the time of a step."""
    work: Any
    copied: Any = None
    """The event behind the copy of `numbers` into memory of the host; None: there is none."""

    def fetched(self) -> "SumExchange":
        """Return the exchange with its numbers on their way to the host; nobody waits for them."""
        if self.work is None:
            return self
        self.work.wait()
        if not devices.is_accelerator(self.numbers.device):
            return self._replace(work=None)
        copy = torch.empty(self.numbers.shape, dtype=torch.int64, device="cpu", pin_memory=True)
        copy.copy_(self.numbers, non_blocking=True)
        return self._replace(numbers=copy, work=None, copied=devices.event())


class BitWatch:
    """Sums up bits, reads the sums of all ranks, and ends the run at a difference."""

    def __init__(self, run: Checked) -> None:
        self._run = run
        self._place = 0
        self._next = 1
        self._under_way: SumExchange | None = None
        self._equal_since: dict[str, int] = {}
        self._last_step, self._last_time = 0, time.perf_counter()
        self._spent = 0.0
        """The processor time of the watch since the last exchange began; a wait for another rank is none."""

    def listen(self) -> None:
        """Compare bits from now on, if they are watched."""
        if is_wanted(self._run):
            events.before_step.listen("bits", self.before_step)

    @property
    def _is_on(self) -> bool:
        """Whether several processes have the same tensors now."""
        run = self._run
        return run.world.processes.size > 1 and dist.is_initialized() and not run.parallelism.is_local

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Compare some tensors of an optimizer that is about to step; all ranks must call this."""
        if not self._is_on:
            return
        began = time.thread_time()
        step = self._run.parallelism.num_steps
        if self._under_way is not None and step > self._under_way.step:
            self._under_way = self._under_way.fetched()
        if self._under_way is not None and step >= self._under_way.step + LAG:
            self._read(self._under_way)
        if self._under_way is None and step >= self._next:
            self._send(step, self._turn(self._of([optimizer])))
        self._spent += time.thread_time() - began

    def compare_all(self) -> None:
        """Compare all tensors before a checkpoint is written; all ranks must call this."""
        if not (is_wanted(self._run) and self._is_on):
            return
        if self._under_way is not None:
            self._read(self._under_way)
        everything = self._of(self._run.parallelism.agreed_optimizers())
        if everything:
            sums = _sums(everything, self._run.world.device)
            self._judge(_begun(self._run.parallelism.num_steps, everything, sums, [0, 0]))

    def _send(self, step: int, turn: Sequence[Named]) -> None:
        """Begin to exchange the sums of the tensors whose turn it is, and what they cost."""
        if not turn:
            return
        now, began = time.perf_counter(), time.thread_time()
        passed = (now - self._last_time) / max(1, step - self._last_step)
        self._last_step, self._last_time = step, now
        sums = _sums(turn, self._run.world.device)
        cost, self._spent = max(self._spent, time.thread_time() - began), 0.0
        if devices.is_accelerator(self._run.world.device):
            cost += sum(one.tensor.nbytes for one in turn) / DEVICE_BYTES_PER_SECOND
        self._under_way = _begun(step, turn, sums, [int(1e9 * cost), -int(1e9 * passed)])

    def _read(self, exchange: SumExchange) -> None:
        """Read an exchange, and decide equally on all ranks in which step the next tensors have their turn."""
        self._under_way = None
        exchange = self._judge(exchange)
        cost, passed = (abs(number) for number in exchange.numbers[-2:].tolist())
        between = -(-cost // max(1, int(SHARE * passed)))
        self._next = exchange.step + min(MOST_BETWEEN, between)

    def _judge(self, exchange: SumExchange) -> SumExchange:
        """End the run if the greatest and the least sum of a tensor differ between ranks; return what was read."""
        exchange = exchange.fetched()
        if exchange.copied is not None:
            exchange.copied.synchronize()
        most: list[int] = exchange.numbers.tolist()
        number = len(exchange.names)
        different = [place for place in range(number) if most[place] != ~most[number + place]]
        if different:
            raise FlippedBits(self._told(exchange, different[0]))
        self._equal_since.update(dict.fromkeys(exchange.names, exchange.step))
        return exchange

    def _told(self, exchange: SumExchange, place: int) -> str:
        """Name the tensor, and the ranks whose sum is not that of most ranks."""
        name = exchange.names[place]
        mine = (int(exchange.own[place]), socket.gethostname(), str(self._run.world.device))
        every = messages.gather(mine)
        told = [f"rank {rank} ({node}, {device})" for rank, (_, node, device) in enumerate(every)]
        usual, number = Counter(total for total, *_ in every).most_common(1)[0]
        odd = [told[rank] for rank, (total, *_) in enumerate(every) if total != usual]
        if 2 * number > len(every):
            who = f"{', '.join(odd[:4])} {'has' if len(odd) == 1 else 'have'} other bits than the other ranks"
        else:
            who = f"{' and '.join(told[:4])} have different bits (nothing tells whose are right)"
        since = self._equal_since.get(name)
        before = "they were not compared before" if since is None else f"they were equal in step {since}"
        return f"{who} in {name} in step {exchange.step}; {before}\n  way out: {WAY_OUT}"

    def _turn(self, everything: Sequence[Named]) -> list[Named]:
        """Return the tensors whose turn it is, in a circle."""
        turn, num_bytes = list[Named](), 0
        while len(turn) < len(everything) and (not turn or num_bytes < TURN_BYTES):
            turn.append(everything[(self._place + len(turn)) % len(everything)])
            num_bytes += turn[-1].tensor.nbytes
        self._place = (self._place + len(turn)) % max(1, len(everything))
        return turn

    def _of(self, optimizers: Iterable[torch.optim.Optimizer]) -> list[Named]:
        """Return what all ranks have alike of the weights of some optimizers, in an order that all ranks share."""
        numbers = {id(weight): number for number, weight in enumerate(self._run.parallelism.known_parameters())}
        everything = list[Named]()
        for optimizer in optimizers:
            for weight in (one for group in optimizer.param_groups for one in group["params"]):
                if id(weight) not in numbers:
                    continue
                label = f"weight {numbers[id(weight)]} of shape {list(weight.shape)}"
                states = optimizer.state.get(weight, {})
                tensors = {"": weight, "the gradient of ": weight.grad}
                tensors.update((f"the state {key} of ", value) for key, value in states.items())
                everything += [
                    Named(words + label, one)
                    for words, one in tensors.items()
                    if isinstance(one, torch.Tensor) and is_plain(one)
                ]
        return everything


def is_wanted(run: Checked) -> bool:
    """Say whether the bits are watched: it was asked for, or the training is one of equal bits."""
    return run.options.watches_bits or run.world.is_exact


def repeats(run: Checked) -> bool:
    """Say whether a rank computes its part of a spot twice: bits are watched, and nothing but a fault alters them."""
    return is_wanted(run) and (run.world.is_exact or torch.are_deterministic_algorithms_enabled())


def refuse_other_bits(world: World, first: object, second: object, model: torch.nn.Module) -> None:
    """Raise FlippedBits if a rank has computed its part of a batch twice, with different bits."""
    sums = [[bit_sum(one).item() for one in tensors_of(each) if is_plain(one)] for each in (first, second)]
    if sums[0] != sums[1]:
        place = f"rank {world.processes.rank} ({socket.gethostname()}, {world.device})"
        raise FlippedBits(
            f"{place} has computed {type(model).__name__} twice for the same samples, with different bits\n"
            f"  way out: {WAY_OUT}"
        )


def _begun(step: int, named: Sequence[Named], sums: torch.Tensor, costs: list[int]) -> SumExchange:
    numbers = torch.cat([sums, ~sums, torch.tensor(costs).to(sums.device, non_blocking=True)])
    work = dist.all_reduce(numbers, op=dist.ReduceOp.MAX, async_op=True)
    return SumExchange(step, [one.name for one in named], sums, numbers, work)


@torch.no_grad()
def _sums(named: Sequence[Named], device: torch.device) -> torch.Tensor:
    """Return the sum of the bits of each tensor, on the device of the exchange."""
    return torch.stack([bit_sum(one.tensor).to(device, non_blocking=True) for one in named])


def bit_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of a tensor's bits as whole numbers, modulo 2⁶⁴; one flipped bit changes it.

    >>> bit_sum(torch.tensor([1.0, -0.0])).item() == bit_sum(torch.tensor([1.0, 0.0])).item()
    False
    """
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    flat = real.detach().reshape(-1)
    return flat.view(_INTEGERS[flat.element_size()]).sum(dtype=torch.int64)
