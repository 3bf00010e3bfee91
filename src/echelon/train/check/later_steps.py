"""Check whether later steps equal those of one device: ranks exchange signatures of the values that must be equal.

A signature travels while the ranks compute. A rank reads it some steps later, when it has arrived, so no rank waits
for it. The measured cost decides how often a step is signed. A few steps are compared more closely (`spots`).
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from .. import events
from ..global_tensors.tensors import GlobalTensor, Sharded, tensors_of
from ..scaling_error import ScalingError
from ..wire import lines, messages
from . import signature
from .pace import Pace
from .signature import Signature
from .spots import Compared, SpotChecks

LAG = 3
"""The number of steps between an exchange and its reading."""
SHARE = 0.005
"""The share of a step that signatures may cost here; gloo's threads take about as much again (docs/performance.md)."""
MOST_NOTES = 8
"""The most notes of one step: a model that generates tokens is called once for each token."""
MOST_BETWEEN = 100
_SETTLING = 3  # first exchanges, which take longer than later ones
WAY_OUT = (
    "draw all random numbers with torch, numpy.random or random, or with a generator that has a seed "
    "(numpy.random.default_rng(0)), or start one rank: echelon run -n 1 …"
)


class Note(NamedTuple):
    """A value that must be equal on all ranks."""

    place: str
    what: str
    signature: Signature


class SignatureExchange(NamedTuple):
    """The signatures of a step whose exchange has begun."""

    step: int
    notes: list[Note]
    numbers: torch.Tensor
    work: dist.Work


class LaterSteps:
    """Signs steps, reads the signatures of all ranks, and refuses a difference."""

    def __init__(self, run: Compared) -> None:
        self._pace = Pace(run.world, run.say)
        self._run = run
        self._is_wanted = True
        self._notes: list[Note] = []
        self._under_way: deque[SignatureExchange] = deque()
        self._next = 1
        self._between = 1
        self._seconds = 0.0  # that this step's signatures have cost
        self._began: float | None = None
        self._last_step = 0
        self._read: deque[list[float]] = deque(maxlen=5)
        self._num_read = 0
        self.spots = SpotChecks(run, self._pace)

    def listen(self) -> None:
        """Compare steps from now on."""
        events.batch.listen("later steps", self._at_batch)
        events.stream.listen("later steps", self._at_stream)
        events.call.listen("later steps", self._at_call)
        events.before_step.listen("later steps", self._before_step)
        self._pace.listen()

    def cancel(self) -> None:
        """Compare nothing from now on."""
        self._is_wanted = False

    @property
    def is_on(self) -> bool:
        """Whether steps are compared: there are other ranks that share batches."""
        return self._is_wanted and self._run.world.size > 1

    @property
    def step(self) -> int:
        """The number of the next optimizer step, from 1."""
        return self._run.parallelism.num_steps + 1

    @property
    def _signs(self) -> bool:
        return self.is_on and self.step >= self._next and len(self._notes) < MOST_NOTES

    def _at_batch(self, _: object, indices: list[object]) -> None:
        """Note the samples of a batch."""
        if self._signs:
            began = time.perf_counter()
            self._note(f"the samples of a batch: {len(indices)}", signature.of_indices(indices))
            self._seconds += time.perf_counter() - began

    def _at_stream(self, batch: object) -> None:
        """Note a batch that every rank has read whole."""
        if self._signs:
            began = time.perf_counter()
            tensors = tensors_of(batch)
            self._note(f"a batch of a stream: {signature.text_of_shapes(batch)}", signature.of_tensors(tensors))
            self._seconds += time.perf_counter() - began

    def _at_call(
        self,
        original: Callable[..., object],
        module: nn.Module,
        inputs: object,
        every: list[object],
        leads: list[list[Sharded]],
    ) -> None:
        """Note a model call before it is computed, and compare its results at once if the step is a spot."""
        if not self.is_on:
            return
        is_spot = self.spots.is_due(self.step)
        if (self._signs or is_spot) and torch.is_grad_enabled():
            self._note_call(module, inputs, set(leads[0][0].rows))
        if is_spot:
            with events.checking:
                self._compare_now()
                self.spots.at_call(original, module, inputs, every, leads)

    def _note_call(self, module: nn.Module, inputs: object, rows_of_ranks: set[int]) -> None:
        """Note the shapes of the shared arguments, and the elements of the arguments that every rank has whole."""
        began = time.perf_counter()
        shared = [one for one in tensors_of(inputs) if isinstance(one, GlobalTensor) or _is_whole(one, rows_of_ranks)]
        signed = signature.of_tensors(shared)
        self._note(f"{type(module).__name__}({signature.text_of_shapes(shared)})", signed)
        self._seconds += time.perf_counter() - began

    def _compare_now(self) -> None:
        """Compare the notes of this step, and all weights, before the ranks join their parts."""
        gradients = self._run.parallelism
        if self.spots.is_at_first_call:
            for optimizer in gradients.agreed_optimizers():
                self._note_settings(optimizer)
            self._note_weights(gradients.known_parameters())
        numbers = signature.numbers(_total(self._notes), self._run.world.device)
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX)
        if not signature.are_equal(numbers.tolist()):
            self._refuse(self.step, self._notes)
        self._notes = []

    def _note(self, label: str, signed: Signature) -> None:
        signed = signature.added(signed, signature.of_text(label))
        self._notes.append(Note(str(lines.of_script()), label, signed))

    def _before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """End the comparison of the step that an optimizer takes now, which `parallelism` has already counted."""
        if not self.is_on or not dist.is_initialized():  # a closure comes to the first model only now
            return
        step = self._run.parallelism.num_steps
        was_spot = self.spots.before_step(step)
        if step >= self._next:
            began = time.perf_counter()
            self._note_settings(optimizer)
            weights = self._run.parallelism.known_parameters()
            place = self._num_read % max(1, len(weights))
            self._note_weights(weights[place : place + 1])  # each time another
            self._send(step)
            self._seconds = time.perf_counter() - began
            self._next = step + self._between
        if self._under_way and step >= self._under_way[0].step + LAG:
            self._receive()
            self._next = min(self._next, step + self._between)
        self._notes = []
        self._pace.before_step(step, optimizer, was_spot=was_spot)

    def _note_settings(self, optimizer: torch.optim.Optimizer) -> None:
        settings = [number for group in optimizer.param_groups for number in _numbers_of(group)]
        self._note(type(optimizer).__name__, signature.of_text(" ".join(f"{number:.6g}" for number in settings)))

    def _note_weights(self, weights: Sequence[torch.Tensor]) -> None:
        """Note weights, which are whole on every rank unless they are sharded."""
        for weight in weights:
            self._note(f"the weights {list(weight.shape)}", signature.of_tensors([weight.detach()]))

    def _send(self, step: int) -> None:
        """Begin to exchange the signatures of a step and their cost."""
        device = self._run.world.device
        now = time.perf_counter()
        num_steps = max(1, step - self._last_step)
        passed = 0.0 if self._began is None else (now - self._began) / num_steps
        self._began, self._last_step = now, step
        costs = torch.tensor([self._seconds, -passed], dtype=torch.float64, device=device)
        numbers = torch.cat([signature.numbers(_total(self._notes), device), costs])
        work = dist.all_reduce(numbers, op=dist.ReduceOp.MAX, async_op=True)
        self._under_way.append(SignatureExchange(step, self._notes, numbers, work))

    def _receive(self) -> None:
        """Read the oldest exchange, refuse a difference, and decide equally on all ranks which step is signed next."""
        exchange = self._under_way.popleft()
        exchange.work.wait()
        most: list[float] = exchange.numbers.tolist()
        if not signature.are_equal(most[:5]):
            self._refuse(exchange.step, exchange.notes)
        self._num_read += 1
        if self._num_read > _SETTLING:
            self._read.append(most[5:])
            cost = sorted(one[0] for one in self._read)[len(self._read) // 2]
            passed = -sorted(one[1] for one in self._read)[len(self._read) // 2]
            self._between = min(MOST_BETWEEN, max(1, -int(-cost // (SHARE * max(passed, 1e-6)))))

    def _refuse(self, step: int, notes: list[Note]) -> None:
        """Gather the notes of all ranks, and refuse the first that differs between two ranks."""
        mine = [(note.place, note.what, [float(number) for number in note.signature]) for note in notes]
        told = _told(messages.gather(mine))
        raise ScalingError(f"step {step} differs from one device: {told}", WAY_OUT)


def _total(notes: list[Note]) -> Signature:
    total = signature.NOTHING
    for number, note in enumerate(notes, 1):
        total = signature.added(total, note.signature, number)
    return total


def _is_whole(tensor: torch.Tensor, rows_of_ranks: set[int]) -> bool:
    """Say whether all ranks must have the same tensor; one with as many rows as a rank may be a part of a batch."""
    dims = tensor.shape[: 2 if tensor.dim() > 2 else 1]
    return not isinstance(tensor, nn.Parameter) and tensor.grad_fn is None and rows_of_ranks.isdisjoint(dims)


def _numbers_of(group: Any) -> list[float]:
    return [float(value) for name, value in sorted(group.items()) if name != "params" and type(value) in (int, float)]


def _told(every: list[Any]) -> str:
    """Name the first difference between rank 0 and another rank; rank 0 has the numbers of one device."""
    for place in range(max(len(notes) for notes in every)):
        of_ranks = [notes[place] if place < len(notes) else ("no line", "nothing more", [0.0] * 3) for notes in every]
        for rank, (line, label, numbers) in enumerate(of_ranks):
            first_line, first_label, first_numbers = of_ranks[0]
            if label != first_label:
                return f"{first_line}: rank 0 has {first_label}, but rank {rank} has {label} ({line})"
            (exact, total, _), (first_exact, first_total, size) = numbers, first_numbers
            if exact != first_exact or abs(total - first_total) > signature.TOLERANCE * size:
                return f"{first_line}: ranks 0 and {rank} have different values of {label}"
    return "the ranks' signatures differ by rounding"
