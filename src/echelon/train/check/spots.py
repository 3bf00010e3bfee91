"""At a few steps, compare the computations of the ranks with those of one device.

Each model call of such a step is computed twice more before the script's own: once by all ranks, each with its rows,
and once by rank 0 with the whole batch. Outputs are compared first. Then the gradients of the weights are compared for
equal gradients of the outputs. Both computations are without dropout and without side effects (`isolation`).
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from ..global_tensors import outputs as model_outputs
from ..global_tensors import returned_numbers
from ..global_tensors.arguments import Entries
from ..global_tensors.pieces import Pieces
from ..global_tensors.tensors import Partial, Sharded, map_tensors, plain, tensors_of
from ..scaling_error import ScalingError
from ..wire import device as devices
from ..wire import exchange, lines, messages
from ..wire import world as worlds
from ..wire.world import alone
from . import bit_watch, rule_spots
from .closeness import TensorDifference, difference_of, difference_of_gradients
from .first_step import FirstStep
from .isolation import Copies, detached, fresh, uncompiled, without_chance
from .pace import Pace, Times
from .part_runs import Checked

EARLY = (2, 5, 11, 24, 101, 504)
"""The early spots: even and odd steps, because a script may alternate two optimizers."""
BETWEEN = 1000
"""The number of later steps for each spot, whose place is drawn by a seed that all runs share."""
MOST_CALLS = 8
"""The most model calls that are compared in a step."""
_COST = 100  # a spot costs about as much as a step of one device and two of its own: 1 % of the steps between spots


class Compared(Checked, Protocol):
    """The training whose steps are compared, the first steps before."""

    first_step: FirstStep


class SpotChecks:
    """Decides which steps are spots, computes their comparisons, and refuses a difference."""

    def __init__(self, run: Compared, pace: Pace) -> None:
        self._run, self._pace = run, pace
        self._rules = rule_spots.RuleSpots(run.generators)
        self._num_calls = 0
        self._step = 0
        self._difference = ""
        self._times = Times()

    @property
    def is_at_first_call(self) -> bool:
        """Whether this spot has compared no call yet."""
        return self._num_calls == 0

    def is_due(self, step: int) -> bool:
        """Say whether this step is a spot, whose model calls are compared."""
        return self._step == step and not torch.is_inference_mode_enabled()

    def at_call(
        self,
        original: Callable[..., object],
        module: nn.Module,
        inputs: object,
        every: list[object],
        leads: list[list[Sharded]],
    ) -> None:
        """Compare a model call before it runs, if this step is a spot."""
        self._num_calls += 1
        if self._num_calls > MOST_CALLS:
            self._times.is_complete = False
            return
        try:
            call = _Call(self._run, original, module, self._times)
            difference = call.compare(inputs, every, leads, self._step + self._num_calls)
        except (
            ScalingError
        ) as refusal:  # on all ranks: their parts do not fit together, and the script never joins them
            refusal.withdraw()
            difference, self._times.is_complete = "", False
        if difference and not self._difference:
            self._difference = f"{lines.of_script()}: {difference}"

    def before_step(self, step: int) -> bool:
        """End a spot with rank 0's verdict for all ranks, and begin the next; return whether this step was a spot."""
        is_spot_now = self._step == step
        if is_spot_now:
            self._rules.end()
            self._tell(step)
        if is_spot(step + 1, self._run.world.size) and self._one_device_has_room():
            self._step, self._num_calls, self._difference, self._times = step + 1, 0, "", Times()
            self._rules.begin()
        return is_spot_now

    def _one_device_has_room(self) -> bool:
        """Say whether rank 0 can compute a whole batch, as far as its oracle knows; all ranks must call this."""
        flag = torch.tensor(float(not self._run.first_step.is_too_large), device=self._run.world.device)
        dist.broadcast(flag, 0)
        return bool(flag)

    def _tell(self, step: int) -> None:
        difference = self._difference or self._rules.difference
        is_bad = torch.tensor(float(bool(difference)), device=self._run.world.device)
        dist.broadcast(is_bad, 0)
        if bool(is_bad):
            raise ScalingError(
                f"step {step} differs from one device: {messages.broadcast(difference, 0)}",
                "compare samples with each other outside the model, where the batch is whole, or start one "
                "rank: echelon run -n 1 …",
            )
        self._pace.note_spot(step, self._times)


def is_spot(step: int, num_ranks: int) -> bool:
    """Say whether a step is a spot: a few early steps, then one step of a thousand; fewer with many ranks."""
    cost = num_ranks + 2
    if step in EARLY:
        return 4 * step >= cost
    between = max(BETWEEN, _COST * cost)
    return step > between and step % between == random.Random(step // between).randrange(between)


class _Call:
    """One model call, computed by the ranks and by rank 0."""

    def __init__(self, run: Compared, original: Callable[..., object], module: nn.Module, times: Times) -> None:
        self._run = run
        self._original = original
        self._module = module
        self._times = times
        self._copies = Copies(module)
        self._is_main = run.world.processes.rank == 0
        self._was_drawn = False

    def compare(self, inputs: object, every: list[object], leads: list[list[Sharded]], seed: int) -> str:
        """Return the difference on rank 0; an empty text where nothing differs or nothing can be compared."""
        if not self._agree(is_fine=_fits(inputs)):
            return self._left_out()
        whole_inputs = map_tensors(inputs, _whole)
        with self._timed("own"):
            parts = self._parts(every, leads)
        if not self._agree(is_fine=parts is not None) or parts is None:
            return self._left_out()
        again = self._parts(every, leads) if bit_watch.repeats(self._run) else None
        if again is not None:  # there may be no memory for a second time
            bit_watch.refuse_other_bits(self._run.world, parts, again, self._module)
        outputs = model_outputs.leave(self._module, [part for part, _ in parts], leads)
        if not self._run.world.is_exact:
            outputs = returned_numbers.as_known(outputs, parts[0][0], self._module, inputs, leads[0][0])
        if not self._agree(is_fine=_fits(outputs)):
            return self._left_out()
        values = plain(outputs)
        wanted = _weights_of_outputs(outputs, seed)
        with self._timed("own"):
            own = self._own_gradients(outputs, wanted, [copies for _, copies in parts])
        with self._timed("exchange"):
            own = self._total(own)
        if self._copies.is_spread:
            self._times.is_complete = False
        if self._copies.is_spread or self._is_main:
            return self._compare_whole(whole_inputs, values, wanted, own)
        return ""

    def _left_out(self) -> str:
        self._times.is_complete = False
        return ""

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        self._wait()
        began = time.perf_counter()
        yield
        self._wait()
        setattr(self._times, name, getattr(self._times, name) + time.perf_counter() - began)

    def _parts(self, every: list[Any], leads: list[list[Sharded]]) -> list[Any] | None:
        """Return the model's outputs, and its copies of weights, for the rows of this rank or of each of its shards."""
        run = self._run
        before = run.calls.has_rows, run.calls.fraction
        results = []
        try:
            for (args, kwargs), rows in zip(every, leads, strict=False):
                run.calls.note_rows(rows[0])
                entered = Entries(self._module, rows[0]).enter(*map_tensors((args, kwargs), detached))
                results.append(self._compute(map_tensors(entered, fresh), rows[0]))
        except Exception:  # noqa: BLE001  (the script's own call raises it again)
            return None
        finally:
            run.calls.has_rows, run.calls.fraction = before
        return results

    def _compute(self, inputs: Any, lead: Sharded | None = None) -> Any:
        """Return the outputs of a call, and the copies of weights that it was computed with."""
        args, kwargs = inputs
        is_whole = self._run.options.syncs_batch_norm
        with ExitStack() as stack:
            was_drawn = stack.enter_context(self._run.generators.kept())
            stack.enter_context(without_chance(are_statistics_whole=is_whole))
            stack.enter_context(self._copies.in_place())
            stack.enter_context(uncompiled(self._run.calls.is_compiled))
            stack.enter_context(self._run.calls.once_more(lead))
            if self._copies.is_spread:
                stack.enter_context(torch.no_grad())
            outputs = self._original(self._module, *args, **kwargs)
            self._was_drawn = self._was_drawn or was_drawn()
        return outputs, list(self._copies.weights.items())

    def _agree(self, is_fine: bool) -> bool:
        """Say whether all ranks have computed their rows."""
        flag = torch.tensor(float(is_fine), device=self._run.world.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        return bool(flag)

    def _own_gradients(self, outputs: object, wanted: list[torch.Tensor], copies: list[Any]) -> Any:
        """Return the gradients of the weights from this rank's part of the outputs; None where there are none."""
        if not copies or not copies[0]:
            return None
        sums: list[Any] = [None] * len(copies)
        for output, weights in zip(_views_of(outputs), wanted, strict=False):
            for place, part in enumerate(getattr(output, "parts", [output])):
                value = _weighted(part, weights)
                if value.requires_grad:
                    sums[place] = value if sums[place] is None else sums[place] + value
        total = None
        for value, weights_of_part in zip(sums, copies, strict=False):
            with self._run.calls.once_more():
                gradients = _gradients(value, weights_of_part)
            if total is None or gradients is None:
                total = gradients
            else:
                total = [one + other for one, other in zip(total, gradients, strict=False)]
        return total if self._agree(is_fine=total is not None) else None

    def _total(self, gradients: Sequence[torch.Tensor] | None) -> Any:
        """Return the sum of gradients over ranks, with one message for each dtype, as in a step."""
        if gradients is None:
            return None
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for gradient in gradients:
            by_dtype.setdefault(gradient.dtype, []).append(gradient)
        for tensors in by_dtype.values():
            joined = torch.cat([one.reshape(-1) for one in tensors])
            dist.all_reduce(joined)
            sizes = [one.numel() for one in tensors]
            for gradient, total in zip(tensors, torch.split(joined, sizes), strict=False):
                gradient.copy_(total.view_as(gradient))
        return gradients

    def _compare_whole(self, inputs: tuple[object, ...], values: object, wanted: list[torch.Tensor], own: Any) -> str:
        """Compute the whole batch and compare it; if that fails, for lack of memory for example, compare nothing."""
        try:
            with self._timed("whole"), self._as_one_device(), self._without_others():
                outputs, copies = self._compute(inputs)
                theirs = None if own is None else self._whole_gradients(outputs, wanted, copies)
        except (RuntimeError, ValueError, LookupError, TypeError):
            self._times.whole = float("inf")
            return ""
        except ScalingError as refusal:  # of rank 0 alone: the model keeps a part of a batch, say
            refusal.withdraw()
            self._times.whole = float("inf")
            return ""
        if self._was_drawn:
            return ""  # each rank draws for itself
        name = type(self._module).__name__
        difference = difference_of(values, map_tensors(outputs, torch.Tensor.detach))
        if difference:
            return _of_outputs(difference, name)
        if theirs is None:
            return ""
        names = [self._copies.names.get(key, "") for key, copy in copies if copy.requires_grad]
        mismatch = difference_of_gradients(own, theirs, names)
        return (
            ""
            if mismatch is None
            else f"the rows of all ranks together give another gradient of {name}.{mismatch.what} than the whole "
            f"batch: they {mismatch.how}"
        )

    def _whole_gradients(self, outputs: object, wanted: list[torch.Tensor], copies: Any) -> list[torch.Tensor] | None:
        total: Any = None
        for output, weights in zip(model_outputs.distinct(outputs), wanted, strict=False):
            if output.requires_grad:
                value = _summed(output, weights)
                total = value if total is None else total + value
        return _gradients(total, copies)

    def _without_others(self) -> AbstractContextManager[None]:
        """Allow no wait for other ranks while rank 0 computes alone."""
        return nullcontext() if self._copies.is_spread else alone("the comparison of a step")

    @contextmanager
    def _as_one_device(self) -> Iterator[None]:
        run = self._run
        world, before = run.world, (run.calls.has_rows, run.calls.fraction)
        run.world = worlds.World(0, 1, world.device)
        run.calls.has_rows, run.calls.fraction = True, 1.0
        try:
            yield
        finally:
            run.world = world
            run.calls.has_rows, run.calls.fraction = before

    def _wait(self) -> None:
        devices.synchronize(self._run.world.device)


def _of_outputs(difference: TensorDifference, name: str) -> str:
    return (f"{name} gives other numbers for the whole batch than for the rows of each rank: {difference.what} "
    f"{difference.how}")  # fmt: skip


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    whole: torch.Tensor = plain(tensor)
    return fresh(whole).requires_grad_(tensor.requires_grad and whole.is_floating_point())


def _fits(value: object) -> bool:
    """Say whether this process can join its shards: each may be padded to its own longest sample."""
    for pieces in tensors_of(value):
        if isinstance(pieces, Pieces) and isinstance(pieces.parts[0], Sharded):
            dim = pieces.parts[0].dim_of_rows
            if len({(*part.local.shape[:dim], *part.local.shape[dim + 1 :]) for part in pieces.parts}) > 1:
                return False
    return True


def _views_of(outputs: object) -> list[torch.Tensor]:
    """Return the distinct output tensors of a model, in the order of `outputs.distinct`."""
    distinct = {id(one): one for one in tensors_of(outputs) if not isinstance(one, nn.Parameter)}
    return list(distinct.values())


def _weights_of_outputs(outputs: object, seed: int) -> list[torch.Tensor]:
    """Return gradients for the outputs, drawn with a seed: equal on all ranks."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(one.shape, generator=generator).to(one.device, _real(one.dtype)) for one in _views_of(outputs)
    ]  # fmt: skip


def _real(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point else torch.float32


def _weighted(part: object, weights: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of the sum of an output multiplied by its gradient."""
    if isinstance(part, Sharded):
        return _summed(part.counted, exchange.own_rows(weights, part.world.rank, part.rows, part.dim_of_rows))
    return _summed(part.local, weights) if isinstance(part, Partial) else weights.new_zeros(())


def _summed(output: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return ((output.real if output.is_complex() else output) * weights).sum()


def _gradients(value: torch.Tensor | None, copies: Sequence[Any]) -> list[torch.Tensor] | None:
    """Return the gradients of the copies of weights; None where none is needed, or PyTorch cannot compute them."""
    wanted = [copy for _, copy in copies if copy.requires_grad]
    if value is None or not value.requires_grad or not wanted:
        return None
    try:
        gradients = torch.autograd.grad(value, wanted, allow_unused=True)
    except RuntimeError:
        return None  # reentrant checkpoints, say
    return [_dense(one, weight) for one, weight in zip(gradients, wanted, strict=False)]


def _dense(gradient: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
    if gradient is None:
        return torch.zeros_like(weight)
    return gradient.to_dense() if gradient.is_sparse else gradient
