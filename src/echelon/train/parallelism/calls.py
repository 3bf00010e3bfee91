"""Calls of models: each rank computes its own rows of a batch, and the outputs become global tensors.

Only the outermost call counts, and only a call of a module that has parameters. A loss, a pooling or an augmentation
without parameters follows `rules`, like the script's own functions. Inside of a model everything is plain PyTorch.
"""

import os
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from ...pytorch import internals
from .. import batches, events
from ..batches import is_batch
from ..function_types import Args, Function, Kwargs
from ..global_tensors import aliases, kept_tensors, lists, numbered, outputs, pieces, returned_numbers
from ..global_tensors.arguments import Doubt, Entries, dim_of_samples
from ..global_tensors.arguments import doubt as doubt_of
from ..global_tensors.model_calls import ModelCalls, Unshared
from ..global_tensors.tensors import GlobalTensor, Sharded, map_tensors, own_part, tensors_of
from ..scaling_error import ScalingError
from ..training import Training
from ..wire import exchange

NUM_LOOKED_AT = 32
"""The number of calls of models in which echelon looks for hooks of the script."""
COUNTED = (
    "a tool records each operation of PyTorch here (a TorchDispatchMode, such as FlopCounterMode): every rank computes "
    "the whole batch, as one device does"
)


class Calls(ModelCalls):
    """Call models with this rank's rows of a batch."""

    def __init__(self, run: Training) -> None:
        super().__init__(run)
        self._run = run
        self._has_told_hook = False
        self._scripts: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        """Modules that train inside of their forward(): they are parts of the script's loop, and no models."""
        self._error_of_model: Exception | None = None
        """What a model raised, and no exchange with a rank that was killed."""
        self._kept: weakref.WeakKeyDictionary[nn.Module, kept_tensors.Ways] = weakref.WeakKeyDictionary()

    def call(self, original: Function, module: nn.Module, args: Args, kwargs: Kwargs) -> Any:
        if self._run.world.size == 1 and self._run.generators.is_watched and not self.is_inside:
            if self._is_for_training(self._leading(args, kwargs)):
                self._run.begin_training()  # the oracle was forked before training began
            with self._inside(None):
                return original(module, *args, **kwargs)
        if self.is_inside or self._run.draws.is_inside or os.getpid() != self._pid or not self._is_model(module):
            return original(module, *args, **kwargs)
        if internals.is_transformed():  # for each sample by itself, or as a function: whole on every rank
            with self._inside(None):
                return original(module, *args, **kwargs)
        aliases.copy_changes()
        was_alone = self._run.world.size == 1
        global_tensors = [one for one in tensors_of(args, kwargs) if isinstance(one, GlobalTensor)]
        if any(_has_rows(one) for one in global_tensors) and not internals.num_dispatch_modes():
            every = pieces.apart((args, kwargs), self._run.world.hosted)
            return self._compute(original, module, (args, kwargs), every, [_rows_among(one) for one in every])
        if global_tensors:
            args, kwargs = map_tensors(
                (args, kwargs), lambda one: one.whole() if isinstance(one, GlobalTensor) else one
            )
        if internals.num_dispatch_modes():  # a tool counts or records each operation
            return self._call_counted(original, module, args, kwargs)
        shared = self._rows_of_plain(module, args, kwargs)
        if shared is None:
            if self._run.world.size == 1 and not was_alone:
                return self.call(original, module, args, kwargs)  # training began here, and this is the oracle
            return self._call_whole(original, module, args, kwargs)
        return self._compute_plain(original, module, args, kwargs, shared)

    def _call_counted(self, original: Callable[..., object], module: nn.Module, args: Args, kwargs: Kwargs) -> Any:
        """Call a module whole on every rank, so that a tool that counts operations counts those of one device."""
        if self._run.world.size > 1 and self._is_for_training(self._leading(args, kwargs)):
            self._run.begin_training()
        if not self.num_counted and self._run.world.size > 1:
            self._run.say(COUNTED)
        self.num_counted += 1
        return original(module, *args, **kwargs)

    def _compute_plain(
        self, original: Function, module: nn.Module, args: Args, kwargs: Kwargs, shared: list[Sharded]
    ) -> Any:
        """Compute this rank's rows of a batch that every rank has whole."""
        first = self._leading(args, kwargs)
        is_certain = shared[0].dim_of_rows > 0  # the layer names it
        doubt = None if is_certain else doubt_of(module, tensors_of(args, kwargs), shared[0].size(0))
        every = [map_tensors((args, kwargs), partial(_exchanged, first, one)) for one in shared]
        try:
            return self._compute(original, module, (args, kwargs), every, [[one] for one in shared], first, doubt)
        except (RuntimeError, IndexError, ValueError) as error:
            if error is not self._error_of_model or "out of memory" in str(error):
                raise
            if not self._run.parallelism.calls_need_all_ranks:
                self._refuse_own_error(original, module, args, kwargs)
            if doubt is not None:
                raise ScalingError(*doubt) from error
            reason = str(error).partition("\n")[0]
            raise ScalingError(
                f"{type(module).__name__} fails on the rows that this rank has of its input "
                f"({shared[0].local.size(0)} of {shared[0].size(0)}): {reason}",
                "let the first dim of the model's input be the batch dimension, or start one rank: echelon run -n 1 …",
            ) from error

    def _refuse_own_error(self, original: Callable[..., object], module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        """Raise the error of the script itself, where a model fails with the whole batch too."""
        try:
            with self._inside(None):
                original(module, *args, **kwargs)
        except Exception as error:
            raise error from None

    def _call_whole(self, original: Callable[..., object], module: nn.Module, args: Args, kwargs: Kwargs) -> Any:
        first = self._leading(args, kwargs)
        shape = None if first is None else tuple(first.shape)
        with self._as_a_whole(module, args, kwargs):
            result = original(module, *args, **kwargs)
        self.unshared = Unshared(type(module).__name__, shape, self._run.batch_sizes())
        return result

    def _as_a_whole(self, module: nn.Module, args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        """Return the context of a call with arguments that ranks cannot share; its modules may share theirs.

        They may not where the model got a batch with too few samples: what they get would be steps of time, say.
        """
        sizes = [one.size(0) for one in tensors_of(args, kwargs) if one.dim()]
        if sizes and max(sizes) < self._run.world.size and self._is_for_training(self._leading(args, kwargs)):
            return self.once_more()
        return self.unhooked() if internals.uncompiled(module) is not module else nullcontext()

    def _compute(
        self, original: Function, module: nn.Module, arguments: Any, every: list[Any], leads: list[list[Sharded]],
        first: torch.Tensor | None = None, doubt: Doubt | None = None,
    ) -> Any:  # fmt: skip
        self._run.raised.refuse_if_caught()
        tried = self._run.trials.at_call(original, module, every[0], leads[0][0], first, doubt)
        if tried.trains:
            self._scripts.add(module)
            return original(module, *arguments[0], **arguments[1])
        if tried.attributes:
            known = {place: next(iter(ways), kept_tensors.MIXED) for place, ways in tried.attributes.items()}
            self._kept[module] = kept_tensors.Ways(known, tried.reason)
        self.num_shared += 1
        self.num_samples = max(self.num_samples, sum(leads[0][0].rows))
        self._note_hooks(module)
        self._run.parallelism.apply()  # weights that are trained from now on
        events.call(original, module, arguments, every, leads)
        results = []
        with (
            events.computing,
            self._run.generators.of_shards(module, self._run.keys.next) as of_shard,
        ):
            for (args, kwargs), rows in zip(every, leads, strict=False):
                self.note_rows(rows[0])
                of_shard(rows[0].world.rank)
                entries = Entries(module, rows[0], first)
                own_args, own_kwargs = entries.enter(args, kwargs)
                try:
                    watched = self.branches.watched(module, is_compiled=self.is_compiled)
                    with self._inside(rows), self._run.raised.noted(self.num_shared, module), watched:
                        results.append(original(module, *own_args, **own_kwargs))
                except (RuntimeError, IndexError, ValueError) as error:
                    self._error_of_model = error
                    entries.refuse_guess(error)
                    raise
                entries.leave()
                if module in self._kept:
                    kept_tensors.put_together(module, self._kept[module], rows[0])

        def compute(twin: nn.Module, first: int, count: int) -> Any:
            own = entries.some((own_args, own_kwargs), first, count)
            with self._run.generators.kept(), self._inside(None):
                GlobalTensor.inside_of = rows[0]
                return original(twin, *own[0], **own[1])

        call = returned_numbers.ModelCall(module, rows[0], compute, (own_args, own_kwargs), self._run.say, tried.fits)
        result = outputs.leave(module, results, leads, call, is_trained_alone=self._run.parallelism.trains_alone)
        return result if self._run.world.is_exact else returned_numbers.of_all(result, results[0], call)

    def _is_model(self, module: nn.Module) -> bool:
        return has_parameters(module) and module not in self._scripts

    def _note_hooks(self, module: nn.Module) -> None:
        if self._has_told_hook or self.num_shared > NUM_LOOKED_AT:
            return
        place = first_place(module)
        if place is not None:
            self._has_told_hook = True
            self._run.say(
                f"note: a hook of {place} gets the samples of its rank, not the whole batch; "
                "let forward() return what the script prints or keeps of it"
            )

    def _rows_of_plain(self, module: nn.Module, args: Args, kwargs: Kwargs) -> list[Sharded] | None:
        """Share a batch that every rank has whole: noise for a generator, or samples that the script drew itself.

        Return the rows of this rank, or those of each of its virtual shards; None where the ranks cannot share it.
        """
        run = self._run
        first = self._leading(args, kwargs)
        if run.world.size == 1 or first is None or internals.is_going_backward() or not self._is_for_training(first):
            return None  # in backward, what a model computes again has the rows of this rank
        run.begin_training()
        dim = dim_of_samples(module, first, run.batch_sizes())
        size = first.size(dim)
        if run.world.size == 1 or (size < run.world.size and size not in run.batch_sizes()):
            return None
        rows = batches.rows_of(size, run.world.size)
        return [
            Sharded(own_part(exchange.enter(first, one), one.rank, rows, dim).clone(), one, rows, dim)
            for one in run.world.shards()
        ]

    def _is_for_training(self, first: torch.Tensor | None) -> bool:
        if first is None or isinstance(first, nn.Parameter):
            return False
        run = self._run
        is_marked = getattr(first, "comes_from_batches", False)
        return run.begins_training() and (is_marked or is_batch(first, run.batch_sizes()))

    def _leading(self, args: Args, kwargs: Kwargs) -> torch.Tensor | None:
        return lists.leading(args, kwargs, self._run.batch_sizes())


def _exchanged(first: torch.Tensor | None, rows: Sharded, tensor: torch.Tensor) -> torch.Tensor:
    return rows if tensor is first else tensor


def _has_rows(tensor: GlobalTensor) -> bool:
    return isinstance(tensor, Sharded) or (isinstance(tensor, pieces.Pieces) and not tensor.is_total)


def _rows_among(value: object) -> list[Sharded]:
    rows = [one for one in tensors_of(value) if isinstance(one, Sharded)]
    return rows + numbered.samples_among(rows)


def has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


_NOT_OF_A_SCRIPT = ("site-packages", "dist-packages", "/echelon/train/", "/_echelon/")


def first_place(model: nn.Module) -> str | None:
    """Return where a hook of the script stands, "Linear, at train.py:12"; None where there is none."""
    for module in model.modules():
        for hook in (hook for hooks in internals.hooks_of(module) for hook in hooks.values()):
            while isinstance(hook, partial):
                hook = hook.func
            code = getattr(getattr(hook, "__func__", hook), "__code__", None)
            if code is not None and not any(part in code.co_filename for part in _NOT_OF_A_SCRIPT):
                name = code.co_filename.rpartition("/")[2]
                return f"{type(module).__name__}, at {name}:{code.co_firstlineno:d}"
    return None
