"""Try, in the first calls of a model, whether it treats each row of its batch by itself: `--no-check` changes nothing.

Each rank computes the model for all of its rows, and for two parts of them (`part_runs`). Rows must be equal; a total
must be a sum or a mean over samples. What mixes rows is refused, with its line. A model that trains inside of its
forward() turns out to be a part of the script's loop, and is called as such.
"""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from .. import events
from ..function_types import Args
from ..global_tensors import arguments, kept_tensors
from ..global_tensors.returned_numbers import leaves_of
from ..global_tensors.tensors import Sharded, tensors_of
from ..scaling_error import ScalingError
from ..wire import messages
from ..wire.gather import is_sharded
from .closeness import differs
from .mixing import drawn, first_of
from .part_runs import Checked, Computed, PartRuns, TrainsItselfError
from .part_ways import MEAN, ROWS, SAME, fits, kept_ways

DUE = (1, 10, 100, 1000)
"""The calls of a model that are tried, counted for each way in which the script calls it."""
TRAINS, UNKNOWN, REFUSED = "trains", "unknown", "refused"
WAY_OUT = (
    "do this outside of the model, where the batch is whole: let the model return a row for each sample; "
    "or start one rank: echelon run -n 1 …"
)


class RowVerdict(NamedTuple):
    """What a trial has shown."""

    kind: str = ""
    reason: str = ""
    fits: dict[int, set[str]] | None = None
    """The ways in which each number among the outputs follows from parts of the batch."""

    layer: str = ""
    """The layer that mixes rows because it expects time in the first dim."""
    attributes: dict[kept_tensors.AttributePlace, set[str]] | None = None
    """The ways in which each tensor that the model keeps in attributes follows from the samples."""

    @property
    def trains(self) -> bool:
        """Whether the model trains inside of its forward()."""
        return self.kind == TRAINS


class RowTrials:
    """Decides which calls are tried, and refuses a model that mixes rows."""

    def __init__(self, run: Checked) -> None:
        self._run = run
        self._counts: weakref.WeakKeyDictionary[nn.Module, dict[object, int]] = weakref.WeakKeyDictionary()
        self._verified: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._told: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._now: PartRuns | None = None

    @property
    def is_open(self) -> bool:
        """Whether a model is tried now."""
        return self._now is not None

    def at_backward(self, loss: torch.Tensor) -> None:
        """Notice a backward() inside of a model."""
        if self._now is not None:
            self._now.refuse_training(loss)

    def at_step(self, _: torch.optim.Optimizer) -> None:
        """Notice a step of an optimizer."""
        if self._now is not None:
            raise TrainsItselfError

    def at_call(
        self, original: Callable[..., object], module: nn.Module, value: Args, lead: Sharded,
        first: torch.Tensor | None, doubt: arguments.Doubt | None,
    ) -> RowVerdict:  # fmt: skip
        """Try a call that is about to be computed; raise ScalingError, on all ranks, if it mixes rows.

        A doubt is the reason and the way out of a refusal of rows that are no samples, if these rows are not.
        """
        if not self._is_due(module, value):
            return RowVerdict()
        with events.checking:
            mine = self._try(PartRuns(self._run, original, module), value, lead, first)
        is_alone = self._run.parallelism.trains_alone
        every = [mine] if is_alone else self._of_all(mine)
        refusal = next((one for one in every if one.kind == REFUSED and (one.layer or not is_alone)), None)
        if refusal is not None:
            raise ScalingError(*_refusal(module, refusal, tensors_of(value), sum(lead.rows)))
        trains = next((one for one in every if one.trains), None)
        if trains is not None:
            return trains
        unknown = next((one for one in every if one.kind == UNKNOWN), None)
        if unknown is None:
            self._verified.add(module)
            if len(every) < self._run.world.processes.size:
                return RowVerdict()  # ranks alone agree on nothing
            reason = next((one.reason for one in every if one.reason), "")
            return mine._replace(attributes=kept_tensors.agreed([one.attributes or {} for one in every]), reason=reason)
        self._tell_unknown(module, unknown.reason, doubt)
        return RowVerdict(UNKNOWN)

    def _tell_unknown(self, module: nn.Module, reason: str, doubt: arguments.Doubt | None) -> None:
        """Refuse a model that no trial could verify, where there is a doubt; else say so if nothing else compares."""
        if not reason or module in self._verified:
            return
        if doubt is not None:
            raise ScalingError(*doubt)
        if not self._run.options.checks_first_step and module not in self._told:
            self._told.add(module)
            self._run.say(_UNTRIED % (type(module).__name__, reason))

    def _of_all(self, mine: RowVerdict) -> list[RowVerdict]:
        ways = [[*place, *sorted(of_place)] for place, of_place in (mine.attributes or {}).items()]
        return [
            RowVerdict(kind, reason, None, layer, {(name, at, key): set(of_place) for name, at, key, *of_place in ways})
            for kind, reason, layer, ways in messages.gather((mine.kind, mine.reason, mine.layer, ways))
        ]

    def _is_due(self, module: nn.Module, value: Args) -> bool:
        counts = self._counts.setdefault(module, {})
        key = (module.training, torch.is_grad_enabled(), _signature(value))
        counts[key] = counts.get(key, 0) + 1
        can = not torch.is_inference_mode_enabled() and not any(_is_elsewhere(one) for one in module.parameters())
        return counts[key] in DUE and can and self._now is None

    def _try(self, runs: PartRuns, value: Args, lead: Sharded, first: torch.Tensor | None) -> RowVerdict:
        self._now = runs
        self._run.draws.num_otherwise = 0
        try:
            runs.take(value, lead, first)
            results = self._computed(runs)
            return results if isinstance(results, RowVerdict) else self._judge(runs, results)
        except TrainsItselfError:
            return RowVerdict(TRAINS)
        except ScalingError as refusal:
            refusal.withdraw()
            return RowVerdict(UNKNOWN)
        finally:
            self._now = None

    def _computed(self, runs: PartRuns) -> RowVerdict | list[Computed]:
        """Return the results for all rows and for two parts; a verdict where there are none."""
        sites = self._run.draws.sites
        heard: list[Any] = []
        results = self._results(runs, heard)
        if isinstance(results, RowVerdict) and results.reason:
            heard.clear()
            again = self._results(runs, heard, is_doubled=True)
            results = results if isinstance(again, RowVerdict) else again
        if isinstance(results, RowVerdict) or not any(heard):
            return results
        unruly = sites.learn(heard, (runs.sizes.all_rows, *runs.sizes))
        if unruly is not None:
            return RowVerdict(REFUSED, _DRAWS % str(unruly.line))
        return self._results(runs, [])

    def _results(self, runs: PartRuns, heard: list[Any], *, is_doubled: bool = False) -> RowVerdict | list[Computed]:
        """Compute all rows and both parts, and hear what they draw.

        A model may need more rows than the smaller part has: twice as many rows are tried then.
        """
        sites = self._run.draws.sites
        results: list[Computed] = []
        try:
            if is_doubled:
                runs.double()
            for place in range(3):
                sites.listen()
                results.append(runs.compute(place))
                heard.append(sites.heard())
        except Exception as error:  # noqa: BLE001  (a model may raise anything; if all rows fail, its own call raises it)
            return RowVerdict(UNKNOWN, _FAILS % str(error).partition("\n")[0] if results else "")
        finally:
            sites.heard()
        return results

    def _judge(self, runs: PartRuns, results: list[Computed]) -> RowVerdict:
        """Compare the results of a call with those of its two parts."""
        if self._run.draws.num_otherwise:
            return RowVerdict(UNKNOWN)  # each rank draws for itself, and a line says so
        whole, first, rest = results
        if first.states != whole.states or rest.states != whole.states:
            if not self._run.draws.is_on:
                return RowVerdict(UNKNOWN)
            return RowVerdict(REFUSED, _DRAWS % drawn(runs))
        changed = _changed_buffer(results)
        if changed:
            return RowVerdict(REFUSED, _BUFFER % changed)
        numbers = _numbers(runs, results)
        if numbers is None:
            return RowVerdict(UNKNOWN)
        if MIXED in numbers:
            return self._mixes(runs, whole)
        if whole.carried and self._carries(runs):
            return RowVerdict(REFUSED, _CARRIES % " and ".join(whole.carried[:3]))
        hidden = self._hidden(runs, results, numbers)
        if hidden is not None:
            return hidden
        ways = kept_ways([one.attributes for one in results], runs.sizes)
        is_certain = list(ways.values()).count(set()) == 1  # else the first mixing line may be that of another tensor
        return RowVerdict("", first_of(runs).what if is_certain else "", numbers, attributes=ways)

    def _hidden(self, runs: PartRuns, results: list[Computed], numbers: dict[int, set[str]]) -> RowVerdict | None:
        """Refuse what the outputs for these rows do not show: pairs behind a margin, and a backward pass that mixes."""
        alike = self._mixes_alike(runs) if not runs.need_gradients.isdisjoint(numbers) else None
        if alike is None and runs.own_backward and runs.mixes_gradients(results, numbers):
            return RowVerdict(REFUSED, _BACKWARD % " or ".join(runs.own_backward[:3]))
        return alike

    def _mixes_alike(self, runs: PartRuns) -> RowVerdict | None:
        """Refuse a loss over pairs whose margins hide them in this batch; None if its rows do not mix."""
        try:
            with runs.of_rows_alike():
                results = [runs.compute(place) for place in range(3)]
                verdict = self._mixes(runs, results[0]) if MIXED in (_numbers(runs, results) or {}) else None
        except ScalingError as refusal:
            refusal.withdraw()
            return None
        except Exception:  # noqa: BLE001  (a model may refuse such rows; it took those of the script)
            return None
        return verdict if verdict is not None and verdict.kind == REFUSED else None

    def _carries(self, runs: PartRuns) -> bool:
        """Say whether a second call mixes samples, because of what the first call has kept."""
        try:
            results = [runs.compute(place, num_calls=2) for place in range(3)]
        except Exception:  # noqa: BLE001  (a model may raise anything; the first call was fine)
            return False
        is_mixed = MIXED in (_numbers(runs, results) or {})
        return is_mixed and _are_same(results[0], runs.compute(0, num_calls=2))

    def _mixes(self, runs: PartRuns, before: Computed) -> RowVerdict:
        """Refuse a model whose outputs are equal for equal rows: else chance makes the difference."""
        if not _are_same(before, runs.compute(0)):
            return RowVerdict(UNKNOWN, "it gives other numbers each time")
        mixing = first_of(runs)
        return RowVerdict(REFUSED, mixing.what, layer=mixing.layer)


_FAILS = "it fails with some of them: %s"
_UNTRIED = "note: echelon cannot tell whether %s treats each sample by itself: %s"
_DRAWS = "draws numbers for each of its samples at %s, and each rank has only its own samples"
_CARRIES = "mixes the samples of its batch in its next call, after this one has changed %s: each rank has only its own"
_BACKWARD = "has other gradients for a part of its batch, by %s, and each rank has only its own samples"
_BUFFER = "changes its buffer %s with the samples that it gets, and each rank gets different samples"


MIXED = -1
"""The place of an output that ranks cannot put together from their parts."""


def _numbers(runs: PartRuns, results: list[Computed]) -> dict[int, set[str]] | None:
    """Return the ways in which each number among the outputs follows from the parts; None if their kinds differ."""
    every = [leaves_of(one.outputs) for one in results]
    if len(set(map(len, every))) > 1:
        return None
    numbers: dict[int, set[str]] = {}
    for place, three in enumerate(zip(*every, strict=False)):
        possible = fits(three[0], three[1], three[2], runs.sizes) if _is_number(three[0]) else None
        if possible is not None and not _is_fine(possible, three[0], needs_gradient=place in runs.need_gradients):
            return {MIXED: set()}
        if possible is not None and ROWS not in possible and _is_single(three[0]):
            numbers[place] = possible
    return numbers


def _are_same(before: Computed, again: Computed) -> bool:
    both = zip(leaves_of(before.outputs), leaves_of(again.outputs), strict=False)
    tensors = [(one, other) for one, other in both if isinstance(one, torch.Tensor)]
    return all(one.shape == other.shape and not differs(one, other) for one, other in tensors)


def _is_single(value: object) -> bool:
    return not isinstance(value, torch.Tensor) or value.numel() == 1


def _is_number(value: object) -> bool:
    return isinstance(value, (torch.Tensor, int, float)) and not isinstance(value, bool)


def _refusal(module: nn.Module, verdict: RowVerdict, tensors: list[torch.Tensor], num_rows: int) -> arguments.Doubt:
    if verdict.layer and tensors:
        return arguments.of_layer(module, tuple(tensors[0].shape), num_rows, verdict.layer)
    graph = arguments.of_graph(module, tensors, num_rows) if tensors else None
    return graph or (f"{type(module).__name__} {verdict.reason}", WAY_OUT)


def _is_fine(possible: set[str], output: object, *, needs_gradient: bool) -> bool:
    """Say whether ranks can put an output together from their parts."""
    if isinstance(output, torch.Tensor) and output.numel() > 1:
        wanted = {ROWS, SAME, MEAN} if output.is_floating_point() or output.is_complex() else {ROWS, SAME}
        return bool(possible & wanted)
    return bool(possible) or not needs_gradient  # `returned_numbers` looks at a number that nothing is trained with


def _changed_buffer(results: list[Computed]) -> str:
    whole, *parts = (one.buffers for one in results)
    for name, buffer in whole.items():
        others = [part.get(name) for part in parts]
        if any(one is None or one.shape != buffer.shape or differs(one, buffer) for one in others):
            return name
    return ""


def _is_elsewhere(weight: torch.Tensor) -> bool:
    """Say whether this process cannot compute with a weight alone."""
    return is_sharded(weight) or weight.is_meta or isinstance(weight, nn.parameter.UninitializedParameter)


def _signature(value: object) -> object:
    """Return the way in which a model is called: the kinds of its arguments, and the values of flags."""
    if isinstance(value, torch.Tensor):
        return value.dim()
    if isinstance(value, (tuple, list)):
        return tuple(map(_signature, value[:8]))
    if isinstance(value, dict):
        return tuple((str(key), _signature(one)) for key, one in value.items())
    return value if isinstance(value, (bool, str, type(None))) else type(value).__name__
